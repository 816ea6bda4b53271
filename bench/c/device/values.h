/*
 * What ranks send and what must come of it, computed by the host with arithmetic of its own.
 *
 * An element depends on seed, rank, type and its index modulo PERIOD alone, so a result of any length is compared
 * with a table of PERIOD elements. PERIOD is a prime: what lands in a wrong place is seen.
 * Absent: NaN and infinities in folds (kernels are compared over all values elsewhere); lengths, buffers, calls.
 */
#ifndef DEVICE_VALUES_H
#define DEVICE_VALUES_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { PERIOD = 8191, TYPES = 12, OPS = 6, PREMUL = 5, FLOAT = 7 };
enum { SUM = 0, PROD = 1, MAX = 2, MIN = 3, AVG = 4 };
/* Of floats: integers so small that every order of folding gives the same; numbers that round; any bits at all. */
enum kind { EXACT, ROUNDING, BITS };
/* Of folds that round: any, or from rank 0 to the last, rounded after each or (narrow floats) once, from 32 bits. */
enum order { ANY, AFTER_EACH, ONCE };

/* Codes are NCCL's. `mantissa` is 0 for integers. */
static const struct format {
  const char *name;
  int bytes, is_signed, mantissa, bias;
  int largest;     /* of EXACT */
  int least, most; /* exponents of ROUNDING */
} formats[TYPES] = {
    {"int8", 1, 1, 0, 0, 0, 0, 0},
    {"uint8", 1, 0, 0, 0, 0, 0, 0},
    {"int32", 4, 1, 0, 0, 0, 0, 0},
    {"uint32", 4, 0, 0, 0, 0, 0, 0},
    {"int64", 8, 1, 0, 0, 0, 0, 0},
    {"uint64", 8, 0, 0, 0, 0, 0, 0},
    {"half", 2, 1, 10, 15, 15, -8, 8},
    {"float", 4, 1, 23, 127, 1000, -20, 20},
    {"double", 8, 1, 52, 1023, 1000, -40, 40},
    {"bfloat16", 2, 1, 7, 127, 8, -8, 8},
    {"f8e4m3", 1, 1, 3, 7, 1, -5, 3},
    {"f8e5m2", 1, 1, 2, 15, 1, -5, 3},
};
static const char *const op_names[OPS] = {"sum", "prod", "max", "min", "avg", "premulsum"};

static uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

static double unit_of(const struct format *format, double value) {
  int exponent;
  frexp(value, &exponent);
  exponent -= 1;
  if (exponent < 1 - format->bias) exponent = 1 - format->bias;
  return ldexp(1.0, exponent - format->mantissa);
}

/* To nearest, ties to even. Values of the tables do not overflow. */
static double rounded(const struct format *format, double value) {
  if (format->mantissa == 52 || value == 0) return value;
  double unit = unit_of(format, value);
  return rint(value / unit) * unit;
}

static uint64_t encoded(const struct format *format, double value) {
  int bits = 8 * format->bytes;
  uint64_t sign = signbit(value) ? (uint64_t)1 << (bits - 1) : 0;
  double unit = unit_of(format, value);
  uint64_t digits = (uint64_t)(fabs(value) / unit);
  int exponent;
  if (digits >> format->mantissa == 0) return sign | digits;
  frexp(unit, &exponent);
  exponent += -1 + format->mantissa + format->bias;
  return sign | (uint64_t)exponent << format->mantissa | (digits & (((uint64_t)1 << format->mantissa) - 1));
}

/* NaN for what is no number. */
static double decoded(const struct format *format, uint64_t bits) {
  int width = 8 * format->bytes, exponent_bits = width - 1 - format->mantissa;
  uint64_t digits = bits & (((uint64_t)1 << format->mantissa) - 1);
  int exponent = (int)(bits >> format->mantissa & (((uint64_t)1 << exponent_bits) - 1));
  int last = (1 << exponent_bits) - 1, is_e4m3 = format->bytes == 1 && format->mantissa == 3;
  if (exponent == last && (!is_e4m3 || digits == 7)) return NAN;
  double value = exponent == 0 ? ldexp((double)digits, 1 - format->bias - format->mantissa)
                               : ldexp((double)(digits | (uint64_t)1 << format->mantissa),
                                       exponent - format->bias - format->mantissa);
  return bits >> (width - 1) & 1 ? -value : value;
}

/* A table of elements: their bits, and of floats the numbers. */
typedef struct {
  const struct format *format;
  unsigned char *bytes;
  double *numbers; /* NULL unless float */
  double *slack;   /* how far a result may be from its number; NULL: its bits must be the same */
} table;

static void table_free(table *of) {
  free(of->bytes);
  free(of->numbers);
  free(of->slack);
  memset(of, 0, sizeof *of);
}

static table table_new(int type) {
  table made = {&formats[type], calloc(PERIOD, 8), NULL, NULL};
  if (made.format->mantissa) made.numbers = calloc(PERIOD, sizeof(double));
  if (!made.bytes || (made.format->mantissa && !made.numbers)) abort();
  return made;
}

static void put(table *into, int at, uint64_t bits) {
  memcpy(into->bytes + (size_t)at * (size_t)into->format->bytes, &bits, (size_t)into->format->bytes);
}

static uint64_t bits_at(const table *of, int at) {
  uint64_t bits = 0;
  memcpy(&bits, of->bytes + (size_t)at * (size_t)of->format->bytes, (size_t)of->format->bytes);
  return bits;
}

/* With all digits and an exponent in the range. */
static double number(const struct format *format, uint64_t drawn, int least, int most) {
  uint64_t one = (uint64_t)1 << format->mantissa;
  double value = ldexp((double)(one | (drawn & (one - 1))),
                       least + (int)((drawn >> 53) % (uint64_t)(most - least + 1)) - format->mantissa);
  return drawn >> 52 & 1 ? -value : value;
}

/* What a rank has. */
static table contribution(int type, int op, enum kind kind, uint64_t seed, int rank, int ranks) {
  table made = table_new(type);
  const struct format *format = made.format;
  for (int at = 0; at < PERIOD; at++) {
    uint64_t drawn = mixed(mixed(seed ^ (uint64_t)type << 56 ^ (uint64_t)rank << 32) + (uint64_t)at);
    if (!format->mantissa || kind == BITS) {
      put(&made, at, drawn);
      continue;
    }
    double value;
    if (kind == ROUNDING && op == PROD) {
      value = number(format, drawn, -1, 0);
    } else if (kind == ROUNDING) {
      value = number(format, drawn, format->least, format->most);
    } else if (op == PROD) {
      /* Powers of two: a product of eight of them fits all formats. */
      int exponent = ranks > 8 ? 0 : (int)(drawn % 3) - 1;
      value = ldexp(drawn >> 40 & 1 ? -1.0 : 1.0, exponent);
    } else {
      int width = 2 * format->largest + 1;
      value = (double)((int)(drawn % (uint64_t)width) - format->largest);
    }
    made.numbers[at] = value;
    put(&made, at, encoded(format, value));
  }
  return made;
}

/* What a rank multiplies its contribution by in a pre-multiplied sum: a number, and its bits. */
static double scalar_of(int type, enum kind kind, uint64_t seed, int rank, uint64_t *bits) {
  const struct format *format = &formats[type];
  double value = format->bytes == 1 ? 2 : 1 + rank % 3;
  if (format->mantissa && kind == ROUNDING) value = number(format, mixed(~seed + (uint64_t)rank), -2, 0);
  *bits = format->mantissa ? encoded(format, value) : (uint64_t)value;
  return value;
}

static uint64_t folded_integers(const struct format *format, int op, const table *of, const uint64_t *scalars,
                                int ranks, int at) {
  int shift = 64 - 8 * format->bytes;
  uint64_t result = 0;
  for (int rank = 0; rank < ranks; rank++) {
    uint64_t next = bits_at(&of[rank], at);
    if (op == PREMUL) next *= scalars[rank];
    if (rank == 0) {
      result = next;
      continue;
    }
    int64_t left = (int64_t)(result << shift) >> shift, right = (int64_t)(next << shift) >> shift;
    uint64_t low = ~(uint64_t)0 >> shift;
    int less = format->is_signed ? right < left : (next & low) < (result & low);
    if (op == PROD) result *= next;
    else if (op == MAX) result = less ? result : next;
    else if (op == MIN) result = less ? next : result;
    else result += next;
  }
  if (op == AVG) {
    if (format->is_signed) result = (uint64_t)(((int64_t)(result << shift) >> shift) / ranks);
    else result = (result << shift >> shift) / (uint64_t)ranks;
  }
  return result;
}

/*
 * What the fold of all ranks' tables must be. By bits where every order gives the same (integers, EXACT) and where
 * the order is that of the ranks; otherwise within the bound that holds of any order.
 */
static table folded(int type, int op, enum kind kind, uint64_t seed, const table *of, int ranks, enum order order) {
  table made = table_new(type);
  const struct format *format = made.format;
  uint64_t scalars[256];
  double factors[256];
  for (int rank = 0; rank < ranks; rank++) factors[rank] = scalar_of(type, kind, seed, rank, &scalars[rank]);
  if (!format->mantissa) {
    for (int at = 0; at < PERIOD; at++) put(&made, at, folded_integers(format, op, of, scalars, ranks, at));
    return made;
  }
  int is_power = (ranks & (ranks - 1)) == 0, scales = op == AVG || op == PREMUL;
  int is_exact = op == MAX || op == MIN || order != ANY || (kind == EXACT && (op != AVG || is_power));
  if (!is_exact && !(made.slack = calloc(PERIOD, sizeof(double)))) abort();
  /* The relative error of one rounding, twice over for the scaling. */
  double epsilon = ldexp(1.0, -format->mantissa), least = ldexp(1.0, 1 - format->bias - format->mantissa);
  const struct format *between = order == ONCE && format->mantissa < 23 ? &formats[FLOAT] : format;
  for (int at = 0; at < PERIOD; at++) {
    double result = 0, magnitudes = 0;
    for (int rank = 0; rank < ranks; rank++) {
      double next = of[rank].numbers[at];
      if (scales && format->mantissa == 52) next *= op == AVG ? 1.0 / ranks : factors[rank];
      /* Narrower floats are scaled as 32-bit floats. */
      else if (scales)
        next = rounded(format, (double)((float)next * (op == AVG ? 1.0f / (float)ranks : (float)factors[rank])));
      magnitudes += fabs(next);
      if (rank == 0) result = next;
      else if (op == PROD) result = rounded(between, result * next);
      else if (op == MAX) result = next > result ? next : result;
      else if (op == MIN) result = next < result ? next : result;
      else result = rounded(between, result + next);
    }
    result = rounded(format, result);
    made.numbers[at] = result;
    put(&made, at, encoded(format, result));
    if (made.slack) made.slack[at] = 2 * (ranks + 1) * ((op == PROD ? fabs(result) : magnitudes) * epsilon + least);
  }
  return made;
}

/* How many of `count` elements are not those of the table from element `from` on; `first` becomes the first. */
static size_t differences(const unsigned char *got, const table *want, size_t from, size_t count, size_t *first) {
  size_t width = (size_t)want->format->bytes, bad = 0;
  for (size_t at = 0; at < count;) {
    size_t place = (from + at) % PERIOD, run = PERIOD - place;
    if (run > count - at) run = count - at;
    int same = memcmp(got + at * width, want->bytes + place * width, run * width) == 0;
    for (size_t each = 0; !same && each < run; each++) {
      uint64_t bits = 0;
      memcpy(&bits, got + (at + each) * width, width);
      int good = bits == bits_at(want, (int)(place + each));
      if (!good && want->slack)
        good = fabs(decoded(want->format, bits) - want->numbers[place + each]) <= want->slack[place + each];
      if (!good && bad++ == 0) *first = at + each;
    }
    at += run;
  }
  return bad;
}

/* Fills `count` elements from element `from` of the table. */
static void fill(unsigned char *into, const table *of, size_t from, size_t count) {
  size_t width = (size_t)of->format->bytes;
  for (size_t at = 0; at < count;) {
    size_t place = (from + at) % PERIOD, run = PERIOD - place;
    if (run > count - at) run = count - at;
    memcpy(into + at * width, of->bytes + place * width, run * width);
    at += run;
  }
}

#endif
