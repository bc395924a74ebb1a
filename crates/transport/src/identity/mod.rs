//! Who a machine is: an Ed25519 key, and everything that is proved with it.
//!
//! 1. [`Identity::load_or_create`] keeps the key in a folder of its own (`store`).
//! 2. [`Identity::sign`] and [`PublicKey::verify`] sign manifests and receipts (`key`).
//! 3. [`server_config`] and [`client_config`] make TLS of it (`tls`): each side shows a self-signed
//!    certificate and is known by the public key in it, nothing else.
//!
//! Deliberately absent: certificate authorities, names, validity periods, revocation. Who may connect is
//! said by the ticket (server key, token, list of node keys).

mod key;
mod store;
mod tls;

pub use key::{BadSignature, Identity, PUBLIC_KEY_LEN, ParseKeyError, PublicKey, Signature};
pub use store::{CERTIFICATE_FILE, IdentityError, KEY_FILE};
pub use tls::{
    ClientKeys, WrongServerKey, client_config, crypto_provider, node_key, open_server_config,
    server_config,
};
pub(crate) use tls::{PinnedServer, wrong_server_key};
