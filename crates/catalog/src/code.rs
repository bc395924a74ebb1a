//! Enums that are stored: each value has a fixed number and a fixed name.
//!
//! A number that this program does not know comes from a newer one, or from a damaged database; it is an
//! error of the reader, never a default.

/// Defines an enum with numbers and names, and what is needed to store and to parse it.
macro_rules! coded {
    ($(#[$doc:meta])* pub enum $type:ident : $what:literal {
        $($(#[$variant_doc:meta])* $variant:ident = $code:literal $name:literal,)+
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum $type {
            $($(#[$variant_doc])* $variant = $code,)+
        }

        impl $type {
            /// All values, by number.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The number that is stored.
            pub const fn code(self) -> u16 {
                self as u16
            }

            /// The value with this number.
            pub const fn from_code(code: i64) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// The name that people and machines read.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::code::UnknownName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::ALL.iter().copied().find(|value| value.name() == text).ok_or_else(|| {
                    let names = Self::ALL.iter().map(|value| value.name()).collect();
                    $crate::code::UnknownName { what: $what, text: text.to_owned(), names }
                })
            }
        }
    };
}

pub(crate) use coded;

/// A name that is none of an enum's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {what}; known are {}", names.join(", "))]
pub struct UnknownName {
    /// What kind of name was wanted.
    pub what: &'static str,
    /// What was given.
    pub text: String,
    /// The names there are.
    pub names: Vec<&'static str>,
}
