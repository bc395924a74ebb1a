//! What the program prints: the one way to standard output and standard error.
//!
//! 1. `println!` and its three kin in this crate are those below. The standard library's panic when what they print cannot
//!    be written, and a line of text must not end a transfer.
//! 2. What cannot be written to standard error is dropped.
//! 3. So is what cannot be written to standard output, with all that would follow it. The program does what it was asked
//!    to, and says at its end that its [`lost`] output makes that incomplete.
//! 4. One who reads no further (`| head`) has seen enough: nothing is lost then.

use downpour_transport::control::turns_text;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write as _};
use std::sync::OnceLock;
use tokio::sync::Notify;

macro_rules! print {
    ($($arg:tt)*) => { $crate::output::to_stdout(::std::format_args!($($arg)*)) };
}

macro_rules! println {
    () => { print!("\n") };
    ($($arg:tt)*) => { print!("{}\n", ::std::format_args!($($arg)*)) };
}

macro_rules! eprint {
    ($($arg:tt)*) => { $crate::output::to_stderr(::std::format_args!($($arg)*)) };
}

macro_rules! eprintln {
    () => { eprint!("\n") };
    ($($arg:tt)*) => { eprint!("{}\n", ::std::format_args!($($arg)*)) };
}

/// Text of others that stays where it is put: no control characters, nothing that turns its direction.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || turns_text(c) { '?' } else { c }).collect()
}

/// Text of others without line breaks or other control characters: a subject, words of a source.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Why standard output cannot be written any more.
static BROKEN: OnceLock<io::Error> = OnceLock::new();
/// That it has become so.
static BREAKS: Notify = Notify::const_new();

/// `print!`.
pub(crate) fn to_stdout(text: Arguments<'_>) {
    if BROKEN.get().is_some() {
        return;
    }
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) {
        let _ = BROKEN.set(error);
        BREAKS.notify_one();
    }
}

/// `eprint!`.
pub(crate) fn to_stderr(text: Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(text);
}

/// Until nothing more can be written to standard output: for one who prints without end.
pub(crate) async fn broken() {
    BREAKS.notified().await;
}

/// Why output was lost that somebody waits for.
pub(crate) fn lost() -> Option<&'static io::Error> {
    BROKEN.get().filter(|error| error.kind() != ErrorKind::BrokenPipe)
}
