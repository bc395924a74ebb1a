//! Runs the tools that shape the network, and says which one failed and why.

use serde_json::Value;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Where programs are looked for: some tools are in system folders, which the path of who became root by plain `su` leaves out.
fn path() -> String {
    std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".to_owned()) + ":/usr/sbin:/sbin"
}

/// A call of a program, which finds others as we do.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", path());
    command
}

/// Runs it to its end; gives what it printed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> io::Result<String> {
    let output = command(program).args(arguments).stdin(Stdio::null()).output();
    judge(program, arguments, output)
}

/// The same, with `input` on its standard input.
pub(crate) fn feed(program: &str, arguments: &[&str], input: &str) -> io::Result<String> {
    let mut command = command(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let fed = command.spawn().and_then(|mut child| {
        // Dropped at the end of the statement, which closes it.
        child.stdin.take().expect("piped").write_all(input.as_bytes())?;
        child.wait_with_output()
    });
    judge(program, arguments, fed)
}

/// The same, read as JSON.
pub(crate) fn json(program: &str, arguments: &[&str]) -> io::Result<Value> {
    Ok(serde_json::from_str(&run(program, arguments)?)?)
}

fn judge(program: &str, arguments: &[&str], output: io::Result<Output>) -> io::Result<String> {
    let call = || format!("{program} {}", arguments.join(" "));
    let output = output.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", call())))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{}: {}", call(), error.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A call of this program at real-time priority, where that is allowed.
pub(crate) fn prioritised<'a>(priority: &'a str, program: &'a str) -> Vec<&'a str> {
    match run("chrt", &["-f", priority, "true"]) {
        Ok(_) => vec!["chrt", "-f", priority, program],
        Err(_) => vec![program],
    }
}

/// Where a program is.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Path::new(program).is_file().then(|| PathBuf::from(program));
    }
    path().split(':').map(|folder| Path::new(folder).join(program)).find(|path| path.is_file())
}
