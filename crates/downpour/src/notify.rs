//! Telling people: a mail by SMTP, a post to a webhook.
//!
//! Both are tried by themselves; what fails is told to whoever asked, and does not keep the other from being tried. Both block their
//! thread, for a bounded time.
//!
//! Not here: what is worth telling, and trying again.

use crate::output::one_line;
use crate::section;
use crate::site::section::Complaint;
use crate::units::HostPort;
use lettre::message::{Mailbox, header::ContentType};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Tls, TlsParameters};
use lettre::{Message, SmtpTransport, Transport};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long one of them may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Longest text that is mailed; more is in the report.
const TEXT_BYTES_MAX: usize = 256 << 10;

/// How a mail server is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MailTls {
    /// In the clear: for a server on this machine.
    None,
    /// In the clear first, then TLS; no mail without it.
    #[default]
    Starttls,
    /// TLS from the first byte.
    Tls,
}

/// A mail server and who writes to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    /// The server's host.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// How it is spoken to.
    pub tls: MailTls,
    /// User and the file that holds the password, where it asks for them.
    pub login: Option<(String, PathBuf)>,
    /// The sender.
    pub from: String,
    /// The recipients.
    pub to: Vec<String>,
}

/// Whom to tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notify {
    /// By mail.
    pub mail: Option<Mail>,
    /// By a post of JSON to this URL, `http:` or `https:`.
    pub webhook: Option<String>,
}

section! {
    /// Who is told when something needs a person.
    [notify]
    pub struct NotifySection {
        /// Mail server, as HOST:PORT; without it no mail is sent.
        smtp: HostPort | "\"localhost:587\"",
        /// How the mail server is spoken to: none (in the clear, for one on this machine), starttls or tls.
        smtp_tls: MailTls = "\"starttls\"",
        /// User at the mail server, if it asks.
        smtp_user: String | "\"downpour\"",
        /// File that holds the password.
        smtp_password_file: PathBuf | "\"/etc/downpour/smtp-password\"",
        /// Who writes.
        from: String | "\"downpour@example.org\"",
        /// Who is written to.
        to: Vec<String> = "[]",
        /// URL that gets a POST of JSON.
        webhook: String | "\"https://chat.example.org/hook\"",
        /// Whether a comparison that found nothing is told, too.
        always: bool = "false",
    }
}

impl NotifySection {
    /// Whom it names; paths are relative to `folder`.
    pub fn resolve(&self, folder: &Path) -> Notify {
        let mut notify = Notify { mail: None, webhook: self.webhook.clone() };
        if let (Some(server), Some(from), false) = (&self.smtp, &self.from, self.to.is_empty()) {
            let login = self.smtp_user.clone().zip(self.smtp_password_file.as_ref());
            let login = login.map(|(user, file)| (user, folder.join(file)));
            let (host, port) = (server.host.clone(), server.port);
            let (tls, from, to) = (self.smtp_tls, from.clone(), self.to.clone());
            notify.mail = Some(Mail { host, port, tls, login, from, to });
        }
        notify
    }

    /// What is half said, and would be nothing.
    pub(crate) fn complaints(&self, found: &mut Vec<Complaint>) {
        let mail = [
            ("smtp", self.smtp.is_some()),
            ("from", self.from.is_some()),
            ("to", !self.to.is_empty()),
        ];
        let login = [
            ("smtp_user", self.smtp_user.is_some()),
            ("smtp_password_file", self.smtp_password_file.is_some()),
        ];
        let is_web = |url: &String| url.starts_with("http://") || url.starts_with("https://");
        if let Some(url) = self.webhook.as_ref().filter(|url| !is_web(url)) {
            let todo = "write a URL that begins with https:// or http://";
            found.push(Complaint::new("notify.webhook", format!("nothing posts to `{url}`"), todo));
        }
        for parts in [mail.as_slice(), &login] {
            let Some((said, _)) = parts.iter().find(|(_, is_said)| *is_said) else { continue };
            for (lacks, _) in parts.iter().filter(|(_, is_said)| !is_said) {
                let what = format!("without `{lacks}` no mail can be sent");
                let todo = format!("add {lacks}, or remove {said}");
                found.push(Complaint::new(format!("notify.{said}"), what, todo));
            }
        }
    }
}

/// What to tell.
#[derive(Clone, Debug, Serialize)]
pub struct Note {
    /// What it is about: `reconcile`, `mirror`, `spool`.
    pub about: &'static str,
    /// The site that tells.
    pub site: String,
    /// One line.
    pub subject: String,
    /// All of it, for people.
    pub text: String,
    /// The same for programs.
    pub detail: serde_json::Value,
}

/// Who could not be told, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotTold(pub String);

impl std::fmt::Display for NotTold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Notify {
    /// Tells it to all whom a section names; says who could not be told.
    pub fn tell_by(section: &NotifySection, folder: &Path, note: &Note) -> Vec<NotTold> {
        section.resolve(folder).tell(note)
    }

    /// How many are told.
    pub fn ways(&self) -> usize {
        usize::from(self.mail.is_some()) + usize::from(self.webhook.is_some())
    }

    /// Tells it to all; says who could not be told.
    pub fn tell(&self, note: &Note) -> Vec<NotTold> {
        let mail = self.mail.as_ref().map(|mail| {
            let sent = mail.send(note);
            sent.map_err(|error| format!("mail by {}:{}: {error}", mail.host, mail.port))
        });
        let webhook = self.webhook.as_ref().map(|url| {
            post(url, note).map_err(|error| format!("webhook {}: {error}", without_secret(url)))
        });
        mail.into_iter().chain(webhook).filter_map(Result::err).map(NotTold).collect()
    }
}

impl Mail {
    fn send(&self, note: &Note) -> Result<(), String> {
        let text = |error: &dyn std::error::Error| error.to_string();
        let address = |of: &String| of.parse::<Mailbox>().map_err(|e| format!("`{of}`: {e}"));
        let mut message = Message::builder()
            .from(address(&self.from)?)
            .subject(one_line(&format!("[downpour {}] {}", note.site, note.subject)))
            .header(ContentType::TEXT_PLAIN);
        for to in &self.to {
            message = message.to(address(to)?);
        }
        let mut body = note.text.clone();
        if body.len() > TEXT_BYTES_MAX {
            body.truncate(body.floor_char_boundary(TEXT_BYTES_MAX));
            body.push_str("\n… cut here\n");
        }
        let message = message.body(body).map_err(|e| text(&e))?;
        let parameters = || TlsParameters::new(self.host.clone()).map_err(|e| text(&e));
        let tls = match self.tls {
            MailTls::None => Tls::None,
            MailTls::Starttls => Tls::Required(parameters()?),
            MailTls::Tls => Tls::Wrapper(parameters()?),
        };
        let mut server = SmtpTransport::builder_dangerous(&self.host)
            .port(self.port)
            .tls(tls)
            .timeout(Some(TIMEOUT));
        if let Some((user, file)) = &self.login {
            let password = std::fs::read_to_string(file);
            let password = password.map_err(|e| format!("{}: {e}", file.display()))?;
            let password = password.trim_end().to_owned();
            server = server.credentials(Credentials::new(user.clone(), password));
        }
        server.build().send(&message).map(drop).map_err(|e| text(&e))
    }
}

fn post(url: &str, note: &Note) -> Result<(), String> {
    use ureq::tls::{RootCerts, TlsConfig};
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::PlatformVerifier)
        .unversioned_rustls_crypto_provider(downpour_transport::identity::crypto_provider())
        .build();
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .max_redirects(0)
        .tls_config(tls)
        .build();
    let json = serde_json::to_vec(note).map_err(|error| error.to_string())?;
    let agent = ureq::Agent::new_with_config(config);
    let sent = agent.post(url).content_type("application/json").send(&json[..]);
    // An error may name what was asked for.
    let say = |error: ureq::Error| error.to_string().replace(url, &without_secret(url));
    let status = sent.map_err(say)?.status();
    if status.is_success() { Ok(()) } else { Err(format!("it answers {status}")) }
}

/// Scheme, host and port: whatever else there is may be a secret, as the path is with most services that have webhooks.
fn without_secret(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    let named = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = named.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}/…")
}

#[cfg(test)]
mod tests {
    use super::{Mail, MailTls, Note, Notify, NotifySection, without_secret};
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::path::Path;
    use std::thread::{self, JoinHandle};

    fn note() -> Note {
        Note {
            about: "reconcile",
            site: "berlin".into(),
            subject: "37 differences\r\nBcc: all@example.org".into(),
            text: "missing there 10\n.\nüber\n".into(),
            detail: serde_json::json!({"missing": 10}),
        }
    }

    /// Serves one connection; gives what it was told.
    fn served(serve: fn(TcpStream) -> String) -> (u16, JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        (port, thread::spawn(move || serve(listener.accept().unwrap().0)))
    }

    fn smtp(stream: TcpStream) -> String {
        let mut told = String::new();
        let say = |line: &str| (&stream).write_all(format!("{line}\r\n").as_bytes()).unwrap();
        let mut lines = BufReader::new(&stream).lines();
        say("220 here");
        let mut in_data = false;
        while let Some(Ok(line)) = lines.next() {
            told += &format!("{line}\n");
            match line.split([' ', ':']).next().unwrap_or_default() {
                _ if in_data => {
                    if line == "." {
                        in_data = false;
                        say("250 taken");
                    }
                }
                "EHLO" => say("250-here\r\n250 AUTH PLAIN"),
                "AUTH" => say("235 welcome"),
                "DATA" => {
                    in_data = true;
                    say("354 go on");
                }
                "QUIT" => {
                    say("221 bye");
                    break;
                }
                _ => say("250 well"),
            }
        }
        told
    }

    fn http(mut stream: TcpStream) -> String {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let (mut told, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            told += &line;
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        told += std::str::from_utf8(&body).unwrap();
        let status = if told.contains("/no") { "500 Broken" } else { "204 No Content" };
        write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            .unwrap();
        told
    }

    fn mail(port: u16) -> Mail {
        Mail {
            host: "127.0.0.1".into(),
            port,
            tls: MailTls::None,
            login: None,
            from: "downpour@berlin.example".into(),
            to: vec!["a@example.org".into(), "B <b@example.org>".into()],
        }
    }

    #[test]
    fn a_mail_and_a_post_arrive() {
        let ((smtp_port, smtp), (http_port, http)) = (served(smtp), served(http));
        let webhook = Some(format!("http://127.0.0.1:{http_port}/hook?key=1"));
        let password = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&password, "secret\n").unwrap();
        let login = Some(("user".into(), password.path().to_owned()));
        let notify = Notify { mail: Some(Mail { login, ..mail(smtp_port) }), webhook };
        assert_eq!(notify.tell(&note()), []);
        let mailed = smtp.join().unwrap();
        for expected in [
            "AUTH PLAIN ",
            "MAIL FROM:<downpour@berlin.example>",
            "RCPT TO:<a@example.org>",
            "RCPT TO:<b@example.org>",
            "missing there 10",
        ] {
            assert!(mailed.contains(expected), "{expected} in\n{mailed}");
        }
        // A subject makes no header of its own, and no line of the text ends the mail.
        assert!(!mailed.lines().any(|line| line.starts_with("Bcc:")), "{mailed}");
        assert_eq!(mailed.lines().filter(|line| *line == ".").count(), 1, "{mailed}");
        let posted = http.join().unwrap();
        assert!(posted.starts_with("POST /hook?key=1 HTTP/1.1\r\n"), "{posted}");
        assert!(posted.to_ascii_lowercase().contains("content-type: application/json"), "{posted}");
        assert!(posted.contains(r#""detail":{"missing":10}"#), "{posted}");
    }

    #[test]
    fn who_could_not_be_told_is_named_without_secrets() {
        let (port, http) = served(http);
        // Nobody listens where one has just stopped to.
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let webhook = Some(format!("http://127.0.0.1:{port}/no/secret?key=secret"));
        let told = Notify { mail: Some(mail(closed)), webhook }.tell(&note());
        http.join().unwrap();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].0.contains(&closed.to_string()) && told[1].0.contains("500"), "{told:?}");
        assert!(told.iter().all(|told| !told.0.contains("secret")), "{told:?}");
        assert_eq!(without_secret("https://u:p@host:8443/x?y"), "https://host:8443/…");
    }

    #[test]
    fn a_password_that_cannot_be_read_keeps_no_post_away() {
        let (port, http) = served(http);
        let section = format!(
            "smtp = '127.0.0.1:1'\nfrom = 'a@a.example'\nto = ['b@b.example']\nsmtp_user = 'a'\n\
             smtp_password_file = 'none'\nwebhook = 'http://127.0.0.1:{port}/hook'\n"
        );
        let section: NotifySection = toml::from_str(&section).unwrap();
        let told = Notify::tell_by(&section, Path::new("/nowhere"), &note());
        assert!(told.len() == 1 && told[0].0.contains("/nowhere/none"), "{told:?}");
        // If nothing was posted this is what came.
        let _ = TcpStream::connect(("127.0.0.1", port)).map(|mut end| end.write_all(b"\r\n"));
        assert!(http.join().unwrap().starts_with("POST /hook"));
    }

    #[test]
    fn a_mail_that_is_half_said_is_told_of() {
        let complaints = |text: &str| {
            let mut found = Vec::new();
            let section: NotifySection = toml::from_str(text).unwrap();
            section.complaints(&mut found);
            found.into_iter().map(|found| (found.at, found.todo)).collect::<Vec<_>>()
        };
        let told = |at: &str, todo: &str| (at.to_owned(), todo.to_owned());
        assert_eq!(complaints("webhook = 'http://localhost/'"), []);
        assert_eq!(complaints("smtp = 'm:25'\nfrom = 'a@a.example'\nto = ['b@b.example']"), []);
        let half = complaints("smtp = 'm:25'\nto = ['b@b.example']\nsmtp_user = 'a'");
        let expected = [
            told("notify.smtp", "add from, or remove smtp"),
            told("notify.smtp_user", "add smtp_password_file, or remove smtp_user"),
        ];
        assert_eq!(half, expected);
    }

    #[test]
    fn a_server_without_tls_gets_no_mail_that_needs_it() {
        let (port, smtp) = served(smtp);
        let mail = Mail { tls: MailTls::Starttls, host: "localhost".into(), ..mail(port) };
        let told = Notify { mail: Some(mail), webhook: None }.tell(&note());
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(!smtp.join().unwrap().contains("MAIL FROM"));
    }
}
