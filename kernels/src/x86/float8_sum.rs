//! The sum of two registers of 8-bit floats in their own bytes: 32 or 64 elements at a time, in integers.
//!
//! Invariant: the bits of `narrow(widen(a) + widen(b))`.
//!
//! With `F` bits of fraction and the larger magnitude `a`, the smaller `b`:
//!
//! 1. Denormals are renumbered as if exponents went on below the least (`renumbered`), with an offset that keeps all
//!    positive. Then a code is `2^F` for each exponent and one for each step of the significand, everywhere; zero is a number
//!    so far below that it changes no sum.
//! 2. The significand of `a` is `2^F` to `2^(F+1) - 1` times 8. That of `b`, moved down by the difference of the exponents,
//!    depends on how far `b` is below the last code of `a`'s exponent, and on nothing else (`aligned`). What falls off its end is
//!    kept as a one in the last place. From `REACH` on it is less than the rounding can see.
//! 3. Their sum, or twice their difference, has a leading one in the place of twice `a`'s, of `a`'s, or (a difference of codes
//!    that are nearly equal, which is exact) below. In the first case it is halved. Its upper places are the
//!    significand, or determine it; its last three round it, to nearest with ties to even.
//! 4. Undo the renumbering (`restored`), limit to the largest code, and set the sign.
//!
//! A register with an infinity or NaN takes the general form. A level implements [`ByteRegister`] for its registers.
//!
//! Absent: more than two sources, which are added in binary32 and rounded once, and all other operators.

use crate::convert::Format;

/// A register of bytes. The functions are `unsafe` because they need the level's features.
pub(super) trait ByteRegister: Copy {
    unsafe fn splat(byte: i32) -> Self;
    unsafe fn and(self, other: Self) -> Self;
    unsafe fn or(self, other: Self) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    /// `other` where this has zeros.
    unsafe fn not_and(self, other: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn subtract(self, other: Self) -> Self;
    /// Of unsigned bytes, zero at least.
    unsafe fn subtract_to_zero(self, other: Self) -> Self;
    unsafe fn larger(self, other: Self) -> Self;
    unsafe fn smaller(self, other: Self) -> Self;
    unsafe fn larger_signed(self, other: Self) -> Self;
    unsafe fn smaller_signed(self, other: Self) -> Self;
    /// Half the sum, rounded up.
    unsafe fn average(self, other: Self) -> Self;
    /// Bits 3 to 6, moved to the lowest places.
    unsafe fn upper(self) -> Self;
    /// Whether a signed byte is above that of `limit`.
    unsafe fn any_above(self, limit: Self) -> bool;
    /// The entry of the byte, zero where it has its top bit; below that only the last four bits count.
    unsafe fn look_up(self, table: &Table) -> Self;
    /// `one` where bit `BIT` (4, 5 or 7) of `self` is set, `zero` elsewhere.
    unsafe fn choose<const BIT: u32>(self, zero: Self, one: Self) -> Self;
}

/// Implements `ByteRegister` with the intrinsics named, in the order of the trait. The last two of the expressions see the
/// table as the address of its bytes, and `choose`'s `BIT`.
macro_rules! byte_register {
    (
        $features:literal, $register:ty, $splat:ident, $and:ident, $or:ident, $xor:ident, $not_and:ident, $add:ident,
        $subtract:ident, $subtract_to_zero:ident, $larger:ident, $smaller:ident, $larger_signed:ident,
        $smaller_signed:ident, $average:ident, |$bits:ident| $upper:expr, |$value:ident, $limit:ident| $any_above:expr,
        |$indices:ident, $table:ident| $look_up:expr, |$by:ident, $zero:ident, $one:ident| $choose:expr
    ) => {
        impl ByteRegister for $register {
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn splat(byte: i32) -> Self {
                $splat(byte as i8)
            }
            byte_register!(@ $features, and $and, or $or, xor $xor, not_and $not_and, add $add, subtract $subtract,
                subtract_to_zero $subtract_to_zero, larger $larger, smaller $smaller, larger_signed $larger_signed,
                smaller_signed $smaller_signed, average $average);
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn upper(self) -> Self {
                let $bits = self;
                $upper
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn any_above(self, $limit: Self) -> bool {
                let $value = self;
                $any_above
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn look_up(self, table: &Table) -> Self {
                let ($indices, $table) = (self, table.0.as_ptr());
                $look_up
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn choose<const BIT: u32>(self, $zero: Self, $one: Self) -> Self {
                const { assert!(matches!(BIT, 4 | 5 | 7)) };
                let $by = self;
                $choose
            }
        }
    };
    (@ $features:literal, $($name:ident $intrinsic:ident),*) => {
        $(
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn $name(self, other: Self) -> Self {
                $intrinsic(self, other)
            }
        )*
    };
}
pub(super) use byte_register;

/// Sixteen bytes that a shuffle looks up, for each 128 bits of a register.
#[repr(align(64))]
pub(super) struct Table(pub(super) [u8; 64]);

impl Table {
    const ZEROS: Table = Table([0; 64]);

    const fn set(&mut self, at: i32, value: i32) {
        let mut lane = 0;
        while lane < 4 {
            self.0[at as usize % 16 + lane * 16] = value as u8;
            lane += 1;
        }
    }
}

/// What is looked up for a format.
struct Tables {
    /// From a code below 16 to what is added to renumber it, as the larger and as the smaller.
    larger: Table,
    smaller: Table,
    /// From the codes that `b` is above the last that matters (`REACH` below `a`'s last) to its significand.
    aligned: [Table; 3],
    /// From the fraction of `a` to its significand.
    significand: Table,
    /// From the upper places of a sum to what is taken from the code.
    taken: Table,
    /// From the last four places to whether it is rounded up.
    rounded: Table,
    /// From half a renumbered code with `HALVED` to what is added.
    restored: Table,
}

/// The numbers of a format with `FRACTION` bits of fraction.
struct Numbers<F: Format>(std::marker::PhantomData<F>);

impl<F: Format> Numbers<F> {
    /// One exponent.
    const STEP: i32 = 1 << F::FRACTION;
    /// Added to what is renumbered: whole exponents, as many as keep the least denormal positive, and such that no two entries
    /// of `restored` meet.
    const OFFSET: i32 = 3 * Self::STEP;
    /// How far below the last code of the larger's exponent a code has no effect.
    const REACH: i32 = if F::FRACTION == 3 { 47 } else { 19 };
    /// Added to a renumbered code before it is halved: from the first code that is not changed on, the half has its top bit,
    /// for which a shuffle gives zero.
    const HALVED: i32 = 256 - Self::STEP - Self::OFFSET;

    const TABLES: Tables = Self::tables();

    /// `code`, not zero, as if exponents went on below the least.
    const fn renumbered(code: i32) -> i32 {
        if code >= Self::STEP {
            return code;
        }
        let shift = F::FRACTION as i32 - code.ilog2() as i32;
        (code << shift) - Self::STEP - (shift - 1) * Self::STEP
    }

    const fn tables() -> Tables {
        let (step, offset) = (Self::STEP, Self::OFFSET);
        // Zero stays zero: the smaller is then below everything, and of two zeros nothing is added to or taken away.
        let [mut larger, mut smaller, mut significand] = [Table::ZEROS; 3];
        let [mut taken, mut rounded, mut restored] = [Table::ZEROS; 3];
        let mut aligned = [Table::ZEROS; 3];

        taken.set(0, 255);
        let mut at = 0;
        while at < 16 {
            if at > 0 {
                let renumbered = Self::renumbered(at);
                larger.set(at, renumbered - at + offset);
                smaller.set(at, renumbered - at + offset + Self::REACH);
                taken.set(at, 3 * step - 1 - renumbered);
            }
            significand.set(at, (step + at % step) * 8);
            rounded.set(at, (at % 8 > 4 || at % 8 == 4 && at >= 8) as i32);
            at += 1;
        }
        let mut above = 1;
        while above <= Self::REACH {
            let below = Self::REACH - above;
            let whole = (2 * step - 1 - below % step) * 8;
            let shift = below / step;
            let lost = whole & ((1 << shift) - 1) != 0;
            aligned[above as usize / 16].set(above, whole >> shift | lost as i32);
            above += 1;
        }
        let mut code = 1;
        while code < step {
            let renumbered = Self::renumbered(code);
            let kept = if renumbered < 0 { 0 } else { renumbered };
            restored.set((renumbered + offset + Self::HALVED + 1) / 2, code - kept);
            code += 1;
        }
        Tables { larger, smaller, aligned, significand, taken, rounded, restored }
    }
}

/// The sum of two registers of 8-bit floats of format `F`; `general` is the same by way of binary32, for a register with an
/// infinity or NaN.
///
/// # Safety
/// The processor has the features of the level of `R`, and `general` needs no others.
#[inline(always)]
pub(super) unsafe fn sum_of_two<R: ByteRegister, F: Format>(
    left: R,
    right: R,
    general: unsafe fn(R, R) -> R,
) -> R {
    let tables = const { &Numbers::<F>::TABLES };
    // SAFETY: caller's promise.
    unsafe {
        let byte = |value: i32| R::splat(value);
        let (step, last) = (byte(Numbers::<F>::STEP), byte(Numbers::<F>::STEP - 1));

        let (a, b) = (left.and(byte(0x7f)), right.and(byte(0x7f)));
        let (larger, smaller) = (a.larger(b), a.smaller(b));
        if larger.any_above(byte(F::LIMIT as i32)) {
            return general(left, right);
        }
        // The top bit says whether the magnitudes are subtracted.
        let subtracts = left.xor(right);

        let larger = larger.add(larger.smaller(byte(15)).look_up(&tables.larger));
        let smaller = smaller.add(smaller.smaller(byte(15)).look_up(&tables.smaller));

        let last_of_exponent = larger.or(last);
        let above = smaller.subtract_to_zero(last_of_exponent);
        // Sixteen entries a table; bits 4 and 5 choose the table.
        let [first, second, third] = &tables.aligned;
        let mut aligned = above.choose::<4>(above.look_up(first), above.look_up(second));
        if const { Numbers::<F>::REACH >= 32 } {
            aligned = above.choose::<5>(aligned, above.look_up(third));
        }
        let significand = larger.and(last).look_up(&tables.significand);

        let sum = significand.add(aligned);
        let difference = significand.subtract(aligned);
        let result = subtracts.choose::<7>(sum, difference.add(difference));
        // The place above that of the larger's leading one, moved to the top.
        let is_high = if F::FRACTION == 3 { result } else { result.add(result) };
        // An odd sum that is halved is never near a tie.
        let half = result.average(byte(0));
        let result = is_high.choose::<7>(result, half);

        let code = subtracts.choose::<7>(last_of_exponent.add(step), last_of_exponent);
        let code = is_high.choose::<7>(code, code.add(step));
        let code = code.add(result.look_up(&tables.rounded));
        // A difference of nothing becomes the least code.
        let code = code.subtract_to_zero(result.upper().look_up(&tables.taken));

        let restored = code.average(byte(Numbers::<F>::HALVED)).look_up(&tables.restored);
        let code = code.subtract_to_zero(byte(Numbers::<F>::OFFSET)).add(restored);
        let code = code.smaller(byte(F::LIMIT as i32));

        // As signed bytes the lower operand is negative if one is, and less than 128 below the upper if both are negative
        // or if it is the negative one and larger in magnitude: then the sum is negative. Opposite numbers give +0.
        let (low, high) = (left.smaller_signed(right), left.larger_signed(right));
        let sign = high.subtract(low).not_and(low);
        code.or(sign.and(byte(0x80)))
    }
}
