// Arithmetic on one element: what `kernels/src/number.rs` and `convert.rs` define, for devices.
//
// Invariant: `narrow(combine(widen(a), widen(b)))` has the bits that `Reducer` gives. NaN travels with any payload and
// is made canonical by `narrow`, once, at the end. Products and sums are not contracted (-fmad=false), denormals are
// honoured. Absent: memory, order of the sources.

#ifndef CONSORT_ARITHMETIC_CUH
#define CONSORT_ARITHMETIC_CUH

namespace consort {

constexpr u32 nan_single = 0x7fc00000u;
constexpr u64 nan_double = 0x7ff8000000000000ull;

CONSORT_FN f32 single_of_bits(u32 bits) { return __builtin_bit_cast(f32, bits); }
CONSORT_FN u32 bits_of_single(f32 value) { return __builtin_bit_cast(u32, value); }
CONSORT_FN f64 double_of_bits(u64 bits) { return __builtin_bit_cast(f64, bits); }
CONSORT_FN u64 bits_of_double(f64 value) { return __builtin_bit_cast(u64, value); }

// Bits is the element in memory, Element its signed type, Wide the type that wraps; Exact holds Element and u32.
template <class Bits_, class Element, class Wide_, class Exact> struct Integer {
    typedef Bits_ Bits;
    typedef Wide_ Wide;
    enum : bool { divides = true };

    CONSORT_FN Wide widen(Bits bits) { return Wide(Element(bits)); }
    CONSORT_FN Bits narrow(Wide wide) { return Bits(wide); }
    CONSORT_FN Wide add(Wide left, Wide right) { return left + right; }
    CONSORT_FN Wide multiply(Wide left, Wide right) { return left * right; }
    CONSORT_FN Wide larger(Wide left, Wide right) { return Element(left) < Element(right) ? right : left; }
    CONSORT_FN Wide smaller(Wide left, Wide right) { return Element(right) < Element(left) ? right : left; }
    CONSORT_FN Wide factor(const Factors &factors) { return Wide(factors.whole); }
    CONSORT_FN Wide divide(Wide wide, u32 divisor) { return Wide(Exact(Element(wide)) / Exact(divisor)); }
};

// The common part of floats that are folded in binary32.
struct Single {
    typedef f32 Wide;
    enum : bool { divides = false };

    CONSORT_FN f32 add(f32 left, f32 right) { return left + right; }
    CONSORT_FN f32 multiply(f32 left, f32 right) { return left * right; }
    CONSORT_FN f32 larger(f32 left, f32 right) { return maximum_single(left, right); }
    CONSORT_FN f32 smaller(f32 left, f32 right) { return minimum_single(left, right); }
    CONSORT_FN f32 factor(const Factors &factors) { return factors.single; }
    CONSORT_FN f32 divide(f32 wide, u32) { return wide; }
};

struct Binary32 : Single {
    typedef u32 Bits;
    CONSORT_FN f32 widen(u32 bits) { return single_of_bits(bits); }
    CONSORT_FN u32 narrow(f32 wide) { return wide != wide ? nan_single : bits_of_single(wide); }
};

struct Binary64 {
    typedef u64 Bits;
    typedef f64 Wide;
    enum : bool { divides = false };

    CONSORT_FN f64 widen(u64 bits) { return double_of_bits(bits); }
    CONSORT_FN u64 narrow(f64 wide) { return wide != wide ? nan_double : bits_of_double(wide); }
    CONSORT_FN f64 add(f64 left, f64 right) { return left + right; }
    CONSORT_FN f64 multiply(f64 left, f64 right) { return left * right; }
    // IEEE 754-2019 maximum. Equal values differ at most in the sign of zero, which the AND clears if it can.
    CONSORT_FN f64 larger(f64 left, f64 right) {
        u64 tie = bits_of_double(left) & bits_of_double(right);
        f64 number = left == right ? double_of_bits(tie) : left > right ? left : right;
        return left != left || right != right ? double_of_bits(nan_double) : number;
    }
    CONSORT_FN f64 smaller(f64 left, f64 right) {
        u64 tie = bits_of_double(left) | bits_of_double(right);
        f64 number = left == right ? double_of_bits(tie) : left < right ? left : right;
        return left != left || right != right ? double_of_bits(nan_double) : number;
    }
    CONSORT_FN f64 factor(const Factors &factors) { return factors.double_; }
    CONSORT_FN f64 divide(f64 wide, u32) { return wide; }
};

struct Binary16 : Single {
    typedef u16 Bits;
    CONSORT_FN f32 widen(u16 bits) { return single_of_half(bits); }
    CONSORT_FN u16 narrow(f32 wide) { return u16(wide != wide ? 0x7e00u : half_of_single(wide)); }
};

struct Bfloat16 : Single {
    typedef u16 Bits;
    CONSORT_FN f32 widen(u16 bits) { return single_of_bits(u32(bits) << 16); }
    CONSORT_FN u16 narrow(f32 wide) {
        u32 bits = wide != wide ? nan_single : bits_of_single(wide);
        return u16((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
};

// The code of 8 bits nearest to `value`, ties to even, without branches; beyond the range `limit`.
template <u32 fraction, u32 bias, u32 limit, u32 nan> CONSORT_FN u8 encode_eight(f32 value) {
    constexpr u32 drop = 23 - fraction;
    // Added to a magnitude whose last place is to be kept: rounds there and moves the exponent to this bias.
    constexpr u32 rebias = ((1u << (drop - 1)) - 1u) - ((127u - bias) << 23);
    // In this number one unit in the last place is one denormal step of the format.
    constexpr u32 magic = (127u + 24u - bias - fraction) << 23;
    constexpr u32 smallest_normal = (128u - bias) << 23;
    u32 bits = bits_of_single(value);
    u32 magnitude = bits & 0x7fffffffu;
    u32 normal = (magnitude + rebias + ((magnitude >> drop) & 1u)) >> drop;
    u32 denormal = bits_of_single(single_of_bits(magnitude) + single_of_bits(magic)) - magic;
    u32 code = magnitude < smallest_normal ? denormal : normal;
    code = code < limit ? code : limit;
    return u8(magnitude > 0x7f800000u ? nan : code | ((bits >> 31) << 7));
}

// OFP8 E4M3: one NaN for each sign, no infinity, saturates.
struct Float8E4m3 : Single {
    typedef u8 Bits;
    CONSORT_FN f32 widen(u8 bits) {
        u32 magnitude = bits & 0x7fu;
        // As a binary16 it is 2^8 too small, also where it is denormal; the product is exact.
        f32 value = single_of_half((bits & 0x80u) << 8 | magnitude << 7) * 256.0f;
        return magnitude == 0x7fu ? single_of_bits(nan_single) : value;
    }
    CONSORT_FN u8 narrow(f32 wide) { return encode_eight<3, 7, 0x7e, 0x7f>(wide); }
};

// OFP8 E5M2: the upper half of a binary16; encoding saturates.
struct Float8E5m2 : Single {
    typedef u8 Bits;
    CONSORT_FN f32 widen(u8 bits) { return single_of_half(u32(bits) << 8); }
    CONSORT_FN u8 narrow(f32 wide) { return encode_eight<2, 15, 0x7b, 0x7e>(wide); }
};

typedef Integer<u8, signed char, u32, i64> type_i8;
typedef Integer<u8, u8, u32, u32> type_u8;
typedef Integer<u32, i32, u32, i64> type_i32;
typedef Integer<u32, u32, u32, u32> type_u32;
typedef Integer<u64, i64, u64, i64> type_i64;
typedef Integer<u64, u64, u64, u64> type_u64;
typedef Binary16 type_f16;
typedef Binary32 type_f32;
typedef Binary64 type_f64;
typedef Bfloat16 type_bf16;
typedef Float8E4m3 type_f8e4m3;
typedef Float8E5m2 type_f8e5m2;

// Operators. Only sums scale what is raw and divide when they finish: means are sums.
struct op_sum {
    enum : bool { is_copy = false };
    enum : bool { is_sum = true };
    template <class T> CONSORT_FN typename T::Wide combine(typename T::Wide left, typename T::Wide right) {
        return T::add(left, right);
    }
};
struct op_prod {
    enum : bool { is_copy = false };
    enum : bool { is_sum = false };
    template <class T> CONSORT_FN typename T::Wide combine(typename T::Wide left, typename T::Wide right) {
        return T::multiply(left, right);
    }
};
struct op_max {
    enum : bool { is_copy = false };
    enum : bool { is_sum = false };
    template <class T> CONSORT_FN typename T::Wide combine(typename T::Wide left, typename T::Wide right) {
        return T::larger(left, right);
    }
};
struct op_min {
    enum : bool { is_copy = false };
    enum : bool { is_sum = false };
    template <class T> CONSORT_FN typename T::Wide combine(typename T::Wide left, typename T::Wide right) {
        return T::smaller(left, right);
    }
};

// A raw contribution, scaled and rounded at once: it has the same bits whether it is folded here or travels first.
template <class T> CONSORT_FN typename T::Wide scaled(typename T::Wide wide, typename T::Wide factor) {
    return T::widen(T::narrow(T::multiply(wide, factor)));
}

// For programs that only copy.
struct Bytes {
    typedef u8 Bits;
};
struct op_copy {
    enum : bool { is_copy = true };
};

} // namespace consort

#endif
