//! What types with named values have in common: how they print, and the error for a text that is no name.

/// `Display` by name, and the error of a text that is no name.
macro_rules! named {
    ($type:ident, $error:ident, $what:literal) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        #[doc = concat!("A text that names no [`", stringify!($type), "`].")]
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $error(String);

        impl std::fmt::Display for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!("'{}' is no ", $what, "; known:"), self.0)?;
                $type::ALL.iter().try_for_each(|known| write!(f, " {known}"))
            }
        }

        impl std::error::Error for $error {}
    };
}

pub(crate) use named;
