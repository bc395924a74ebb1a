//! What one section of `site.toml` may say, written once.
//!
//! [`section!`](crate::section) makes of one declaration the type, its reading, and its description: the comments that
//! `downpour init` writes and the keys that `downpour check` knows. A key is one of
//!
//! ```text
//! key: Type => "sample"     it must be given
//! key: Type = "default"     left out, it has this default, written as TOML
//! key: Type | "sample"      it may be left out; its type becomes Option<Type>
//! ```
//!
//! A section whose keys need serde attributes of their own is declared with [`described!`](crate::described) instead: the
//! same marks follow the types, which stand as they are, and only describe.
//!
//! Samples and defaults are texts of TOML, so that what is written is what is meant. What a section's values mean
//! together is checked by `check` of the section, see [`Complaint`].

use serde::de::DeserializeOwned;

/// A section's description.
#[derive(Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name: `site` of `[site]`.
    pub name: &'static str,
    /// Whether it may stand several times: `[[remote]]`.
    pub many: bool,
    /// What it is about, a line each.
    pub about: &'static [&'static str],
    /// What it may say, in order.
    pub keys: &'static [Key],
}

impl Table {
    /// The line that it begins with.
    pub(super) fn heading(&self) -> String {
        if self.many { format!("[[{}]]", self.name) } else { format!("[{}]", self.name) }
    }
}

/// A key's description.
#[derive(Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Its comment, a line each.
    pub about: &'static [&'static str],
    /// A value, as TOML: the default if there is one.
    pub value: &'static str,
    /// What it is without being given.
    pub need: Need,
}

/// What a key is without being given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// An error.
    Required,
    /// Its default.
    Default,
    /// Nothing.
    Optional,
}

/// Something wrong in `site.toml`, for the person who has to mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// Where: `site.name`, or `remote.2.key` for the third `[[remote]]`.
    pub at: String,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub todo: String,
}

impl Complaint {
    /// `at` as its field says.
    pub fn new(at: impl Into<String>, what: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { at: at.into(), what: what.into(), todo: todo.into() }
    }
}

/// A value written as TOML, as in samples and defaults.
///
/// # Panics
/// If it is no value of this type. A test reads all defaults.
pub fn value_of<T: DeserializeOwned>(key: &str, text: &str) -> T {
    #[derive(serde::Deserialize)]
    struct One<T> {
        value: T,
    }
    match toml::from_str::<One<T>>(&format!("value = {text}")) {
        Ok(one) => one.value,
        Err(error) => panic!("default of {key}: {error}"),
    }
}

/// Declares a section; see the module.
#[macro_export]
macro_rules! section {
    (@name [$table:ident]) => { stringify!($table) };
    (@name $table:ident) => { stringify!($table) };
    (@key $key:ident) => { stringify!($key) };
    (@key $key:ident $other:literal) => { $other };
    (@many [$table:ident]) => { true };
    (@many $table:ident) => { false };
    (@type $type:ty => $sample:literal) => { $type };
    (@type $type:ty = $default:literal) => { $type };
    (@type $type:ty | $maybe:literal) => { Option<$type> };
    (@need => $sample:literal) => { $crate::site::section::Need::Required };
    (@need = $default:literal) => { $crate::site::section::Need::Default };
    (@need | $maybe:literal) => { $crate::site::section::Need::Optional };
    (@take $d:ident, $key:ident, $value:expr, => $sample:literal) => {
        $value.ok_or_else(|| <$d::Error as serde::de::Error>::missing_field(stringify!($key)))?
    };
    (@take $d:ident, $key:ident, $value:expr, = $default:literal) => {
        $value.unwrap_or_else(|| $crate::site::section::value_of(stringify!($key), $default))
    };
    (@take $d:ident, $key:ident, $value:expr, | $maybe:literal) => { $value };
    (
        $(#[doc = $about:literal])+
        [$($table:tt)+]
        $vis:vis struct $name:ident {
            $(
                $(#[doc = $doc:literal])+
                $key:ident : $type:ty $(=> $sample:literal)? $(= $default:literal)? $(| $maybe:literal)?,
            )*
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $name {
            $(
                $(#[doc = $doc])+
                pub $key: $crate::section!(@type $type $(=> $sample)? $(= $default)? $(| $maybe)?),
            )*
        }

        impl $name {
            /// What it may say.
            $vis const TABLE: $crate::site::section::Table = $crate::site::section::Table {
                name: $crate::section!(@name $($table)+),
                many: $crate::section!(@many $($table)+),
                about: &[$($about),+],
                keys: &[$(
                    $crate::site::section::Key {
                        name: stringify!($key),
                        about: &[$($doc),+],
                        value: concat!($($sample)? $($default)? $($maybe)?),
                        need: $crate::section!(@need $(=> $sample)? $(= $default)? $(| $maybe)?),
                    },
                )*],
            };
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                #[derive(serde::Deserialize)]
                #[serde(deny_unknown_fields)]
                struct Said {
                    $($key: Option<$type>,)*
                }
                let said = Said::deserialize(from)?;
                Ok(Self {
                    $($key: $crate::section!(
                        @take D, $key, said.$key, $(=> $sample)? $(= $default)? $(| $maybe)?
                    ),)*
                })
            }
        }
    };
}

/// Describes a section that reads itself by serde; see the module. A key whose name is another in the file says so before
/// its marks: `matching as "match": Vec<Glob> => "\"*\""`.
#[macro_export]
macro_rules! described {
    (
        $(#[doc = $about:literal])+
        [$($table:tt)+]
        $(#[derive($($derive:ident),+)])?
        $vis:vis struct $name:ident {
            $(
                $(#[doc = $doc:literal])+
                $(#[serde($($attr:tt)*)])*
                $key:ident $(as $other:literal)? : $type:ty
                    $(=> $sample:literal)? $(= $default:literal)? $(| $maybe:literal)?,
            )*
        }
    ) => {
        $(#[doc = $about])+
        $(#[derive($($derive),+)])?
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        $vis struct $name {
            $(
                $(#[doc = $doc])+
                $(#[serde($($attr)*)])*
                $(#[serde(rename = $other)])?
                pub $key: $type,
            )*
        }

        impl $name {
            /// What it may say.
            $vis const TABLE: $crate::site::section::Table = $crate::site::section::Table {
                name: $crate::section!(@name $($table)+),
                many: $crate::section!(@many $($table)+),
                about: &[$($about),+],
                keys: &[$(
                    $crate::site::section::Key {
                        name: $crate::section!(@key $key $($other)?),
                        about: &[$($doc),+],
                        value: concat!($($sample)? $($default)? $($maybe)?),
                        need: $crate::section!(@need $(=> $sample)? $(= $default)? $(| $maybe)?),
                    },
                )*],
            };
        }
    };
}

/// A name that a list has more than once.
pub fn named_twice(names: &[String]) -> Option<&String> {
    names
        .iter()
        .enumerate()
        .find(|(index, name)| names[..*index].contains(name))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::Need;
    use crate::units::{Amount, Span};
    use std::time::Duration;

    section! {
        /// A section for the test.
        /// It has two lines.
        [[trial]]
        struct Trial {
            /// Its name.
            name: String => "\"first\"",
            /// How long.
            time: Span = "\"30s\"",
            /// How much.
            room: Amount | "\"1GB\"",
        }
    }

    described! {
        /// Another one, with attributes of its own.
        [plain]
        #[derive(Debug)]
        struct Plain {
            /// What it matches.
            #[serde(default)]
            matching as "match": String = "\"\"",
        }
    }

    #[test]
    fn a_section_with_attributes_of_its_own_is_described_too() {
        assert_eq!(toml::from_str::<Plain>("match = '*'").unwrap().matching, "*");
        assert_eq!((Plain::TABLE.name, Plain::TABLE.keys[0].name), ("plain", "match"));
        assert!(!Plain::TABLE.many && toml::from_str::<Plain>("matching = '*'").is_err());
    }

    #[test]
    fn a_section_reads_and_describes_itself() {
        let said: Trial = toml::from_str("name = 'x'\nroom = '2MB'").unwrap();
        assert_eq!(said.name, "x");
        assert_eq!(*said.time, Duration::from_secs(30));
        assert_eq!(said.room.map(|room| *room), Some(2_000_000));
        let table = Trial::TABLE;
        assert_eq!((table.name, table.many, table.about.len()), ("trial", true, 2));
        let needs: Vec<_> = table.keys.iter().map(|key| (key.name, key.need)).collect();
        let expected =
            [("name", Need::Required), ("time", Need::Default), ("room", Need::Optional)];
        assert_eq!(needs, expected);
        for wrong in ["time = '3s'", "name = 'x'\nnmae = 1", "name = 'x'\ntime = '3'"] {
            assert!(toml::from_str::<Trial>(wrong).is_err(), "{wrong}");
        }
    }
}
