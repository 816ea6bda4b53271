//! `cvt`.
//!
//! Invariant: one rounding. Floats that become integers are clamped; NaN becomes zero, or the top bit alone where
//! the source or the target has 64 bits. Absent: `.ftz`, packed conversions other than from two `f32`.

use crate::value::{Kind, Rounding, Type, mask, narrow, signed, widen};

/// One conversion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Convert {
    to: Type,
    from: Type,
    rounding: Rounding,
    /// To a whole number, where both are floats.
    whole: bool,
    saturate: bool,
}

impl Convert {
    /// The conversion of words such as `cvt.rzi.s32.f32`.
    pub(crate) fn parse(words: &[&str]) -> Option<Self> {
        let [_, modifiers @ .., to, from] = words else { return None };
        let (to, from) = (Type::parse(to)?, Type::parse(from)?);
        let (mut rounding, mut whole, mut saturate) = (Rounding::Nearest, false, false);
        for modifier in modifiers {
            match *modifier {
                "sat" => saturate = true,
                "rn" => rounding = Rounding::Nearest,
                "rz" => rounding = Rounding::Zero,
                "rm" => rounding = Rounding::Down,
                "rp" => rounding = Rounding::Up,
                "rni" | "rzi" | "rmi" | "rpi" => {
                    whole = true;
                    rounding = match *modifier {
                        "rni" => Rounding::Nearest,
                        "rzi" => Rounding::Zero,
                        "rmi" => Rounding::Down,
                        _ => Rounding::Up,
                    };
                }
                _ => return None,
            }
        }
        let convert = Self { to, from, rounding, whole, saturate };
        let fits = !to.packed && !from.packed && from.kind != Kind::Predicate && to.kind != Kind::Predicate;
        // Directed rounding of wide integers to floats would go through a double.
        let exact = from.is_float() || !to.is_float() || from.bits <= 32 || rounding == Rounding::Nearest;
        (fits && exact && (!to.is_integer() || !from.is_float() || whole)).then_some(convert)
    }

    /// Bits of a result that is wider in its register than its type: sign-extended when the type is signed.
    pub(crate) fn apply(&self, value: u64) -> u64 {
        let value = value & mask(self.from.bits);
        match (self.from.is_float(), self.to.is_float()) {
            (false, false) => self.integers(value),
            (false, true) => self.to_float(value),
            (true, false) => self.to_integer(value),
            (true, true) => self.floats(value),
        }
    }

    /// Whether results are sign-extended into a wider register.
    pub(crate) fn extends_sign(&self) -> bool {
        self.to.kind == Kind::Signed
    }

    /// Bits of the target type.
    pub(crate) fn bits(&self) -> u32 {
        self.to.bits
    }

    fn integers(&self, value: u64) -> u64 {
        let wide = if self.from.kind == Kind::Signed {
            i128::from(signed(value, self.from.bits))
        } else {
            i128::from(value)
        };
        let wide = if self.saturate { self.clamp(wide) } else { wide };
        wide as u64 & mask(self.to.bits)
    }

    fn limits(&self) -> (i128, i128) {
        match self.to.kind {
            Kind::Signed => (-(1 << (self.to.bits - 1)), (1 << (self.to.bits - 1)) - 1),
            _ => (0, (1 << self.to.bits) - 1),
        }
    }

    fn clamp(&self, value: i128) -> i128 {
        let (low, high) = self.limits();
        value.clamp(low, high)
    }

    fn to_float(self, value: u64) -> u64 {
        let is_signed = self.from.kind == Kind::Signed;
        let number = signed(value, self.from.bits);
        if self.to.bits == 32 && self.to.kind == Kind::Float && self.rounding == Rounding::Nearest {
            let rounded = if is_signed { number as f32 } else { value as f32 };
            return u64::from(rounded.to_bits());
        }
        if self.to.bits == 16 && self.from.bits == 64 {
            // Round to odd first: 64 bits do not fit a double.
            let (magnitude, negative) =
                if is_signed { (number.unsigned_abs(), number < 0) } else { (value, false) };
            let cut = 12;
            let kept = (magnitude >> cut) << cut | u64::from(magnitude & mask(cut) != 0) << cut;
            let odd = if magnitude >> 53 == 0 { magnitude as f64 } else { kept as f64 };
            return narrow(if negative { -odd } else { odd }, self.to, self.rounding);
        }
        let wide = if is_signed { number as f64 } else { value as f64 };
        narrow(wide, self.to, self.rounding)
    }

    fn rounded(&self, value: f64) -> f64 {
        match self.rounding {
            Rounding::Nearest => value.round_ties_even(),
            Rounding::Zero => value.trunc(),
            Rounding::Down => value.floor(),
            Rounding::Up => value.ceil(),
        }
    }

    fn to_integer(self, value: u64) -> u64 {
        let wide = widen(value, self.from);
        if wide.is_nan() {
            let zero = self.from.bits != 64 && self.to.bits != 64;
            return if zero { 0 } else { 1 << (self.to.bits - 1) };
        }
        // `as` clamps to 128 bits, far outside every target.
        self.clamp(self.rounded(wide) as i128) as u64 & mask(self.to.bits)
    }

    fn floats(&self, value: u64) -> u64 {
        let mut wide = widen(value, self.from);
        if self.from.bits == 64 && self.to.bits == 64 && wide.is_nan() {
            return value | 1 << 51;
        }
        if self.whole {
            wide = self.rounded(wide);
        }
        if self.saturate {
            wide = if wide > 0.0 { wide.min(1.0) } else { 0.0 };
        }
        if wide.is_nan() && self.to.bits == 64 {
            return 0x7ff8_0000_0000_0000;
        }
        narrow(wide, self.to, if self.whole { Rounding::Nearest } else { self.rounding })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert(words: &str, value: u64) -> u64 {
        Convert::parse(&words.split('.').collect::<Vec<_>>()).unwrap().apply(value)
    }

    #[test]
    fn between_floats_and_integers() {
        let f = |x: f32| u64::from(x.to_bits());
        assert_eq!(convert("cvt.rzi.s32.f32", f(-2.9)), 0xffff_fffe);
        assert_eq!(convert("cvt.rni.s32.f32", f(2.5)), 2);
        assert_eq!(convert("cvt.rzi.u8.f32", f(300.0)), 255);
        assert_eq!(convert("cvt.rzi.s32.f32", f(f32::NAN)), 0);
        assert_eq!(convert("cvt.rzi.s64.f32", f(f32::NAN)), 1 << 63);
        assert_eq!(convert("cvt.rn.f32.u64", u64::MAX), f(18_446_744_073_709_551_615.0));
        assert_eq!(convert("cvt.rn.bf16.f32", f(1.0 + 1.0 / 256.0)), 0x3f80);
        assert_eq!(convert("cvt.rz.f16.f32", f(65_535.0)), 0x7bff);
        assert_eq!(convert("cvt.rn.f16.f32", f(65_535.0)), 0x7c00);
        assert_eq!(convert("cvt.f32.f16", 0x0001), f(f32::powi(2.0, -24)));
        assert_eq!(convert("cvt.rni.f32.f32", f(-0.5)), f(-0.0));
        assert_eq!(convert("cvt.sat.s8.s32", 1000), 127);
        assert_eq!(convert("cvt.s64.s32", 0xffff_ffff), u64::MAX);
        assert_eq!(convert("cvt.rn.f32.f64", 1.0e300f64.to_bits()), f(f32::INFINITY));
    }
}
