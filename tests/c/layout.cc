// layout.c in C++: the headers must be both.
#include "layout.c"
