//! An archive that a test plays: HTTP or HTTPS on loopback, a thread for each connection.

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

/// What is answered.
pub(crate) enum Reply {
    /// JSON, as it should be.
    Json(String),
    /// Something else: status, further headers, body.
    Page(u16, String, Vec<u8>),
    /// Half of what it says it is, then the end.
    BreaksOff,
    /// Nothing, as long as somebody waits.
    Silence,
}

/// A question: `GET /path?query`, and its body.
pub(crate) struct Question {
    pub(crate) line: String,
    pub(crate) body: String,
}

/// A server that runs as long as the test program.
pub(crate) struct Server {
    pub(crate) port: u16,
    /// Its certificate, when it has one.
    pub(crate) pem: String,
    asked: Arc<Mutex<Vec<String>>>,
}

type Answer = dyn Fn(&Question) -> Reply + Send + Sync;

impl Server {
    /// Without TLS.
    pub(crate) fn plain(answer: impl Fn(&Question) -> Reply + Send + Sync + 'static) -> Self {
        Self::start(None, String::new(), Arc::new(answer))
    }

    /// With a certificate of its own for this name.
    pub(crate) fn tls(
        name: &str,
        answer: impl Fn(&Question) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        Self::start(Some(Arc::new(config)), pem(made.cert.der()), Arc::new(answer))
    }

    fn start(tls: Option<Arc<ServerConfig>>, pem: String, answer: Arc<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = asked.clone();
        thread::spawn(move || {
            for tcp in listener.incoming() {
                let (tls, answer, seen) = (tls.clone(), answer.clone(), seen.clone());
                // A client that breaks off, or that does not trust us, is part of the story.
                thread::spawn(move || match tls {
                    None => serve(tcp?, &*answer, &seen),
                    Some(config) => {
                        let connection = ServerConnection::new(config).unwrap();
                        serve(StreamOwned::new(connection, tcp?), &*answer, &seen)
                    }
                });
            }
        });
        Self { port, pem, asked }
    }

    /// What it was asked, in order.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn serve<S: Read + Write>(
    stream: S,
    answer: &Answer,
    seen: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    stream.read_line(&mut line)?;
    loop {
        let mut header = String::new();
        stream.read_line(&mut header)?;
        if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if header.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let line = line.trim().trim_end_matches(" HTTP/1.1").to_owned();
    seen.lock().unwrap().push(line.clone());
    let question = Question { line, body: String::from_utf8(body).unwrap() };
    let (status, headers, body) = match answer(&question) {
        Reply::Json(text) => {
            (200, "content-type: application/json\r\n".to_owned(), text.into_bytes())
        }
        Reply::Page(status, headers, body) => (status, headers, body),
        Reply::BreaksOff => {
            write!(stream.get_mut(), "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{{\"hits\"")?;
            return stream.get_mut().flush();
        }
        Reply::Silence => {
            // Ends when the other side does.
            return stream.read_to_end(&mut Vec::new()).map(drop);
        }
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} There\r\ncontent-length: {length}\r\n{headers}connection: close\r\n\r\n"
    );
    stream.get_mut().write_all(head.as_bytes())?;
    stream.get_mut().write_all(&body)?;
    stream.get_mut().flush()
}

/// A certificate as text.
fn pem(der: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in der.chunks(48) {
        for three in line.chunks(3) {
            let bits = three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
            let bits = bits << (8 * (3 - three.len()));
            for place in 0..4 {
                let letter = LETTERS[(bits >> (18 - 6 * place)) as usize & 63];
                text.push(if place <= three.len() { char::from(letter) } else { '=' });
            }
        }
        text.push('\n');
    }
    text + "-----END CERTIFICATE-----\n"
}
