//! What the repository says of itself: its map, its documents, its headers, what must not compile.

mod architecture;
mod documents;
mod functions;
mod header;
mod misuse;
mod symbols;
mod variables;
