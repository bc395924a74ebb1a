//! The key pair, its text forms, signatures.
//!
//! What is signed is `"downpour-signature-1" ‖ len(domain) ‖ domain ‖ message`: a signature made for one
//! purpose never passes for another, nor for the other two things that the key signs: a TLS
//! handshake (begins with spaces) and the own certificate (begins with 0x30).

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Bytes of a public key.
pub const PUBLIC_KEY_LEN: usize = 32;

const SEED_LEN: usize = 32;
const SIGNATURE_LEN: usize = 64;
const SIGNED_PREFIX: &[u8] = b"downpour-signature-1";
/// Longest domain string.
const DOMAIN_LEN_MAX: usize = 255;

/// PKCS#8 version 1 around an Ed25519 seed (RFC 8410). Not the library's own version 2 form, which OpenSSL,
/// and so curl, cannot read.
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// SubjectPublicKeyInfo before an Ed25519 key (RFC 8410). Nothing follows the key.
const SPKI_PREFIX: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// An Ed25519 public key: the name of a node. Its text form is base64url of the 32 bytes, 43 characters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey([u8; PUBLIC_KEY_LEN]);

impl PublicKey {
    /// From the raw bytes. Whether they are a point on the curve shows when a signature is verified.
    pub const fn from_bytes(bytes: [u8; PUBLIC_KEY_LEN]) -> Self {
        Self(bytes)
    }

    /// The raw bytes.
    pub const fn as_bytes(&self) -> &[u8; PUBLIC_KEY_LEN] {
        &self.0
    }

    /// From a DER SubjectPublicKeyInfo; `None` when it is not exactly an Ed25519 one.
    pub fn from_spki(der: &[u8]) -> Option<Self> {
        let key = der.strip_prefix(&SPKI_PREFIX)?;
        Some(Self(key.try_into().ok()?))
    }

    /// Whether the holder of this key signed `message` for `domain`.
    pub fn verify(
        &self,
        domain: &str,
        message: &[u8],
        signature: &Signature,
    ) -> Result<(), BadSignature> {
        UnparsedPublicKey::new(&ED25519, &self.0)
            .verify(&signed_bytes(domain, message), &signature.0)
            .map_err(|_| BadSignature { key: *self })
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| ParseKeyError)?;
        Ok(Self(bytes.try_into().map_err(|_| ParseKeyError)?))
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The text is not a public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a public key: expected 43 characters of base64url")]
pub struct ParseKeyError;

/// The signature was not made by this key, or for other bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the signature is not one by key {key}")]
pub struct BadSignature {
    /// Whose signature it should have been.
    pub key: PublicKey,
}

/// An Ed25519 signature.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature([u8; SIGNATURE_LEN]);

impl Signature {
    /// From the raw bytes.
    pub const fn from_bytes(bytes: [u8; SIGNATURE_LEN]) -> Self {
        Self(bytes)
    }

    /// The raw bytes.
    pub const fn as_bytes(&self) -> &[u8; SIGNATURE_LEN] {
        &self.0
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signature({})", URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl Serialize for Signature {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl<'de> Deserialize<'de> for Signature {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(serde::de::Error::custom)?;
        let bytes = bytes
            .try_into()
            .map_err(|_| serde::de::Error::custom("a signature is 64 bytes of base64url"))?;
        Ok(Self(bytes))
    }
}

/// A node's key pair and its certificate. Does not print its private half.
pub struct Identity {
    seed: [u8; SEED_LEN],
    pair: Ed25519KeyPair,
    public: PublicKey,
    certificate: CertificateDer<'static>,
}

impl Identity {
    /// A new key that is kept nowhere.
    ///
    /// # Panics
    /// If the operating system has no randomness to give.
    pub fn generate() -> Self {
        let mut seed = [0; SEED_LEN];
        SystemRandom::new().fill(&mut seed).expect("the operating system gives random bytes");
        Self::from_seed(seed)
    }

    pub(super) fn from_seed(seed: [u8; SEED_LEN]) -> Self {
        // Any 32 bytes are a valid seed, and the length is fixed by the type.
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).expect("32 bytes are a seed");
        // An Ed25519 public key is 32 bytes.
        let public = PublicKey(pair.public_key().as_ref().try_into().expect("32 bytes"));
        let certificate = self_signed(&seed);
        Self { seed, pair, public, certificate }
    }

    /// The name of this node.
    pub fn public_key(&self) -> PublicKey {
        self.public
    }

    /// Signs `message` for `domain`, a short constant that names the purpose.
    pub fn sign(&self, domain: &str, message: &[u8]) -> Signature {
        let signature = self.pair.sign(&signed_bytes(domain, message));
        // An Ed25519 signature is 64 bytes.
        Signature(signature.as_ref().try_into().expect("64 bytes"))
    }

    /// The self-signed certificate: the same bytes each time for one key.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The certificate as text, for `curl --cert`.
    pub fn certificate_pem(&self) -> String {
        pem("CERTIFICATE", &self.certificate)
    }

    pub(super) fn key_der(&self) -> PrivatePkcs8KeyDer<'static> {
        PrivatePkcs8KeyDer::from([&PKCS8_PREFIX[..], &self.seed].concat())
    }

    pub(super) fn key_pem(&self) -> String {
        pem("PRIVATE KEY", self.key_der().secret_pkcs8_der())
    }

    /// From PKCS#8, version 1 or 2; `None` when it is not an Ed25519 key.
    pub(super) fn from_key_der(der: &[u8]) -> Option<Self> {
        // The seed stands after the version, the algorithm and two octet string headers, at the same
        // place in both versions. An unusual encoding that puts it elsewhere gives another public key.
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).ok()?;
        let seed = der.get(PKCS8_PREFIX.len()..PKCS8_PREFIX.len() + SEED_LEN)?;
        let identity = Self::from_seed(seed.try_into().ok()?);
        (identity.public.as_bytes() == pair.public_key().as_ref()).then_some(identity)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.public)
    }
}

fn signed_bytes(domain: &str, message: &[u8]) -> Vec<u8> {
    assert!(domain.len() <= DOMAIN_LEN_MAX, "a domain is a short constant");
    [SIGNED_PREFIX, &[domain.len() as u8], domain.as_bytes(), message].concat()
}

fn self_signed(seed: &[u8; SEED_LEN]) -> CertificateDer<'static> {
    let der = PrivatePkcs8KeyDer::from([&PKCS8_PREFIX[..], seed].concat());
    let make = || -> Result<CertificateDer<'static>, rcgen::Error> {
        let key = rcgen::KeyPair::from_pkcs8_der_and_sign_algo(&der, &rcgen::PKCS_ED25519)?;
        let mut params = rcgen::CertificateParams::new(vec!["downpour".to_owned()])?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, "downpour node");
        Ok(params.self_signed(&key)?.der().clone())
    };
    // The only input that varies is the seed, and any seed will do.
    make().expect("a constant certificate")
}

fn pem(label: &str, der: &[u8]) -> String {
    const LINE_LEN: usize = 64;
    let body = STANDARD.encode(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, tail) = rest.split_at(rest.len().min(LINE_LEN));
        text.push_str(line);
        text.push('\n');
        rest = tail;
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::{Identity, PublicKey, SPKI_PREFIX, Signature};

    #[test]
    fn a_signature_holds_for_its_key_domain_and_message_only() {
        let identity = Identity::generate();
        let key = identity.public_key();
        let signature = identity.sign("receipt", b"all there");
        assert_eq!(key.verify("receipt", b"all there", &signature), Ok(()));
        assert!(key.verify("manifest", b"all there", &signature).is_err());
        assert!(key.verify("receipt", b"all here!", &signature).is_err());
        assert!(key.verify("receip", b"tall there", &signature).is_err());
        assert!(
            Identity::generate().public_key().verify("receipt", b"all there", &signature).is_err()
        );
        let mut bytes = *signature.as_bytes();
        bytes[0] ^= 1;
        assert!(key.verify("receipt", b"all there", &Signature::from_bytes(bytes)).is_err());
    }

    #[test]
    fn keys_have_one_text_form() {
        let key = Identity::generate().public_key();
        assert_eq!(key.to_string().len(), 43);
        assert_eq!(key.to_string().parse(), Ok(key));
        let spki = [&SPKI_PREFIX[..], key.as_bytes()].concat();
        assert_eq!(PublicKey::from_spki(&spki), Some(key));
        for bad in ["", "AAAA", &format!("{key}A"), &format!("{key}="), "*"] {
            assert!(bad.parse::<PublicKey>().is_err(), "{bad}");
        }
    }

    #[test]
    fn one_key_has_one_certificate() {
        let identity = Identity::generate();
        let again = Identity::from_key_der(identity.key_der().secret_pkcs8_der()).unwrap();
        assert_eq!(again.public_key(), identity.public_key());
        assert_eq!(again.certificate(), identity.certificate());
    }

    #[test]
    fn keys_in_the_second_version_of_pkcs8_are_read() {
        use aws_lc_rs::signature::KeyPair;
        let rng = aws_lc_rs::rand::SystemRandom::new();
        let der = aws_lc_rs::signature::Ed25519KeyPair::generate_pkcs8(&rng).unwrap();
        let pair = aws_lc_rs::signature::Ed25519KeyPair::from_pkcs8(der.as_ref()).unwrap();
        let identity = Identity::from_key_der(der.as_ref()).unwrap();
        assert_eq!(identity.public_key().as_bytes(), pair.public_key().as_ref());
    }

    #[test]
    fn the_private_half_is_not_printed() {
        let identity = Identity::generate();
        assert_eq!(format!("{identity:?}"), format!("Identity({})", identity.public_key()));
    }
}
