//! TLS 1.3 between pinned keys (`docs/protocol.md#CTL-1`).
//!
//! The client knows the server's public key beforehand: the certificate's SubjectPublicKeyInfo must be
//! that key and the handshake must be signed by it. The server demands a certificate and takes any
//! well-formed Ed25519 one; who it was is told by [`node_key`]. A site's server, to which people come with
//! tokens, does without ([`open_server_config`]). Names, dates and issuers in certificates are not looked at. Sessions are not
//! resumed: each connection proves both keys anew.
//!
//! Whether that node is welcome ([`ClientKeys`]) is asked after the handshake, because a client that is
//! turned away within it learns of that by an alert at best, and often by nothing but a reset.

use super::key::{Identity, PublicKey};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, OtherError,
    ServerConfig, SignatureScheme,
};
use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

const ALPN: &[u8] = b"http/1.1";

/// Which node keys a server lets in.
#[derive(Clone, Debug, Default)]
pub enum ClientKeys {
    /// Every key; the ticket's token is what admits.
    #[default]
    Any,
    /// These only.
    Only(BTreeSet<PublicKey>),
}

impl ClientKeys {
    /// Whether the node `key` is welcome.
    pub fn allow(&self, key: &PublicKey) -> bool {
        match self {
            Self::Any => true,
            Self::Only(keys) => keys.contains(key),
        }
    }
}

/// The server showed another key than the pinned one: not the machine that the ticket was made for, or
/// somebody in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server's key is {seen}, but the ticket names {expected}")]
pub struct WrongServerKey<K = PublicKey> {
    /// The pinned key.
    pub expected: K,
    /// The key in the server's certificate.
    pub seen: K,
}

/// The server's side: shows `identity`, demands a client certificate.
pub fn server_config(identity: &Identity) -> Arc<ServerConfig> {
    server_config_for(identity, true)
}

/// The server's side: shows `identity`, asks for a client certificate and does without.
pub fn open_server_config(identity: &Identity) -> Arc<ServerConfig> {
    server_config_for(identity, false)
}

fn server_config_for(identity: &Identity, nodes_only: bool) -> Arc<ServerConfig> {
    let provider = crypto_provider();
    let verifier = AnyNode { nodes_only, algorithms: provider.signature_verification_algorithms };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has TLS 1.3 suites")
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(vec![identity.certificate().clone()], key_of(identity))
        .expect("the certificate was made from this key");
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Arc::new(config)
}

/// The client's side: shows `identity`, talks to the holder of `server` only.
pub fn client_config(identity: &Identity, server: PublicKey) -> Arc<ClientConfig> {
    let provider = crypto_provider();
    let verifier = PinnedServer {
        expected: server,
        key_of: node_key,
        schemes: vec![SignatureScheme::ED25519],
        algorithms: provider.signature_verification_algorithms,
    };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has TLS 1.3 suites")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(vec![identity.certificate().clone()], key_of(identity))
        .expect("the certificate was made from this key");
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Arc::new(config)
}

/// The public key in a certificate, from `peer_certificates()` of a connection; `None` when it is no
/// Ed25519 certificate.
pub fn node_key(certificate: &CertificateDer<'_>) -> Option<PublicKey> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    PublicKey::from_spki(&parsed.subject_public_key_info())
}

/// Finds, under an error of a handshake, that the server's key was not the pinned one.
pub(crate) fn wrong_server_key<K: Key>(error: &rustls::Error) -> Option<WrongServerKey<K>> {
    let rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(other))) = error
    else {
        return None;
    };
    let other: &(dyn Error + 'static) = &**other;
    other.downcast_ref().copied()
}

/// The ciphers and signatures of our TLS connections; only those to a database come with their own.
pub fn crypto_provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn key_of(identity: &Identity) -> PrivateKeyDer<'static> {
    PrivateKeyDer::Pkcs8(identity.key_der())
}

/// A form in which a server's key may be known.
pub(crate) trait Key: Copy + Eq + fmt::Debug + fmt::Display + Send + Sync + 'static {}

impl<K: Copy + Eq + fmt::Debug + fmt::Display + Send + Sync + 'static> Key for K {}

/// Takes the server with this key and no other, whatever else its certificate says.
#[derive(Debug)]
pub(crate) struct PinnedServer<K> {
    pub(crate) expected: K,
    /// The key in a certificate.
    pub(crate) key_of: fn(&CertificateDer<'_>) -> Option<K>,
    pub(crate) schemes: Vec<SignatureScheme>,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
}

impl<K: Key> ServerCertVerifier for PinnedServer<K> {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let seen = (self.key_of)(end_entity).ok_or(CertificateError::BadEncoding)?;
        if seen != self.expected {
            let wrong = WrongServerKey { expected: self.expected, seen };
            return Err(CertificateError::Other(OtherError(Arc::new(wrong))).into());
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.clone()
    }
}

#[derive(Debug)]
struct AnyNode {
    nodes_only: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for AnyNode {
    fn client_auth_mandatory(&self) -> bool {
        self.nodes_only
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        node_key(end_entity).ok_or(CertificateError::BadEncoding)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

#[cfg(test)]
mod tests {
    use super::{
        ClientKeys, client_config, node_key, open_server_config, server_config, wrong_server_key,
    };
    use crate::identity::{Identity, WrongServerKey};
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, ServerConnection};
    use std::collections::BTreeSet;
    use std::sync::Arc;

    /// Shakes hands in memory. The error is that of the side that objected first.
    fn shake(
        client: Arc<ClientConfig>,
        server: Arc<rustls::ServerConfig>,
    ) -> Result<(ClientConnection, ServerConnection), rustls::Error> {
        let name = ServerName::try_from("downpour").unwrap();
        let mut client = ClientConnection::new(client, name).unwrap();
        let mut server = ServerConnection::new(server).unwrap();
        for _ in 0..4 {
            let mut wire = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut wire).unwrap();
            }
            server.read_tls(&mut wire.as_slice()).unwrap();
            server.process_new_packets()?;
            let mut wire = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut wire).unwrap();
            }
            client.read_tls(&mut wire.as_slice()).unwrap();
            client.process_new_packets()?;
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        Ok((client, server))
    }

    #[test]
    fn both_sides_learn_the_other_key_and_share_a_secret() {
        let (sender, node) = (Identity::generate(), Identity::generate());
        let (client, server) =
            shake(client_config(&node, sender.public_key()), server_config(&sender)).unwrap();
        let seen = node_key(&server.peer_certificates().unwrap()[0]);
        assert_eq!(seen, Some(node.public_key()));
        let export = |context: &[u8]| {
            let mine = client.export_keying_material([0; 32], b"x", Some(context)).unwrap();
            let theirs = server.export_keying_material([0; 32], b"x", Some(context)).unwrap();
            assert_eq!(mine, theirs);
            mine
        };
        assert_ne!(export(b"one"), export(b"two"));
    }

    #[test]
    fn another_server_key_is_named() {
        let (sender, other, node) =
            (Identity::generate(), Identity::generate(), Identity::generate());
        let error =
            shake(client_config(&node, sender.public_key()), server_config(&other)).unwrap_err();
        let wrong = wrong_server_key(&error).expect("the reason is kept");
        assert_eq!(
            wrong,
            WrongServerKey { expected: sender.public_key(), seen: other.public_key() }
        );
        let text = wrong.to_string();
        assert!(text.contains(&sender.public_key().to_string()), "{text}");
        assert!(text.contains(&other.public_key().to_string()), "{text}");
    }

    /// A certificate can be copied by anybody who has seen it; the key cannot.
    #[test]
    fn a_copied_certificate_without_its_key_is_not_enough() {
        #[derive(Debug)]
        struct Thief(Arc<rustls::sign::CertifiedKey>);
        impl rustls::server::ResolvesServerCert for Thief {
            fn resolve(
                &self,
                _hello: rustls::server::ClientHello<'_>,
            ) -> Option<Arc<rustls::sign::CertifiedKey>> {
                Some(self.0.clone())
            }
        }
        let (sender, thief, node) =
            (Identity::generate(), Identity::generate(), Identity::generate());
        let own = rustls::crypto::aws_lc_rs::sign::any_eddsa_type(&thief.key_der()).unwrap();
        let stolen = vec![sender.certificate().clone()];
        let resolver = Thief(Arc::new(rustls::sign::CertifiedKey::new(stolen, own)));
        let server = rustls::ServerConfig::builder_with_provider(super::crypto_provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(resolver));
        let error = shake(client_config(&node, sender.public_key()), Arc::new(server)).unwrap_err();
        assert_eq!(
            error,
            rustls::Error::InvalidCertificate(rustls::CertificateError::BadSignature)
        );
    }

    #[test]
    fn a_client_without_a_certificate_is_turned_away_unless_the_server_is_open() {
        let sender = Identity::generate();
        let mut config = (*client_config(&Identity::generate(), sender.public_key())).clone();
        config.client_auth_cert_resolver = Arc::new(NoCertificate);
        let config = Arc::new(config);
        let error = shake(config.clone(), server_config(&sender)).unwrap_err();
        assert_eq!(error, rustls::Error::NoCertificatesPresented);
        let (_, server) = shake(config, open_server_config(&sender)).unwrap();
        assert!(server.peer_certificates().is_none(), "let in, as nobody");
    }

    #[derive(Debug)]
    struct NoCertificate;

    impl rustls::client::ResolvesClientCert for NoCertificate {
        fn resolve(
            &self,
            _hints: &[&[u8]],
            _schemes: &[rustls::SignatureScheme],
        ) -> Option<Arc<rustls::sign::CertifiedKey>> {
            None
        }

        fn has_certs(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_list_of_keys_allows_those_only() {
        let (friend, stranger) = (Identity::generate(), Identity::generate());
        let list = ClientKeys::Only(BTreeSet::from([friend.public_key()]));
        assert!(list.allow(&friend.public_key()) && !list.allow(&stranger.public_key()));
        assert!(ClientKeys::Any.allow(&stranger.public_key()));
    }
}
