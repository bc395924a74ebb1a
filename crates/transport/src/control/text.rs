//! Bytes as text in JSON and headers: base64url without padding.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Bytes as base64url without padding: how keys, tokens and tickets are written.
pub fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The bytes behind [`encode`]; `None` when the text is not exactly what it gives.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// The same for a length that is known.
pub(crate) fn decode_array<const N: usize>(text: &str) -> Option<[u8; N]> {
    decode(text)?.try_into().ok()
}

/// 16 bytes with a text form of 22 characters. `shown` decides what `Debug` prints.
macro_rules! bytes16 {
    ($(#[$doc:meta])* $name:ident, $what:literal, $shown:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; 16]);

        impl $name {
            /// From the raw bytes.
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }

            /// A fresh one; `None` when the system gives no randomness.
            pub fn random() -> Option<Self> {
                use aws_lc_rs::rand::SecureRandom;
                let mut bytes = [0; 16];
                aws_lc_rs::rand::SystemRandom::new().fill(&mut bytes).ok()?;
                Some(Self(bytes))
            }

            /// The raw bytes.
            pub const fn as_bytes(&self) -> &[u8; 16] {
                &self.0
            }

            /// The 22 characters of base64url.
            pub fn to_text(&self) -> String {
                $crate::control::text::encode(&self.0)
            }

            /// From [`Self::to_text`].
            pub fn from_text(text: &str) -> Option<Self> {
                $crate::control::text::decode_array(text).map(Self)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let shown: fn(&Self) -> String = $shown;
                write!(f, "{}({})", stringify!($name), shown(self))
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.to_text())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                Self::from_text(&text)
                    .ok_or_else(|| serde::de::Error::custom(concat!($what, " is 22 characters of base64url")))
            }
        }
    };
}
pub(crate) use bytes16;

/// `#[serde(with = "text::bytes32")]`: 32 bytes.
pub(crate) mod bytes32 {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8; 32], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[u8; 32], D::Error> {
        super::decode_array(&String::deserialize(from)?)
            .ok_or_else(|| serde::de::Error::custom("expected 32 bytes of base64url"))
    }
}

/// `#[serde(with = "text::secret")]`: a [`crate::Secret`]; written to a TLS connection only.
pub(crate) mod secret {
    use crate::Secret;
    use serde::{Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(secret: &Secret, to: S) -> Result<S::Ok, S::Error> {
        super::bytes32::serialize(secret.expose(), to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Secret, D::Error> {
        super::bytes32::deserialize(from).map(Secret::new)
    }
}
