//! `downpour receipt`: what a receiver signed for a file, looked at and verified without asking anybody.

use super::{Exit, Fault};
use crate::receipt::SignedFileReceipt;
use clap::{Args, Subcommand};
use downpour_catalog::RECEIPT_BYTES_MAX;
use downpour_transport::identity::PublicKey;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

/// Show or verify a receipt: a receiver's signed word that it has a file
#[derive(Debug, Args)]
pub(super) struct ReceiptArgs {
    #[command(subcommand)]
    verb: ReceiptVerb,
}

#[derive(Debug, Subcommand)]
enum ReceiptVerb {
    Show(ShowArgs),
    Verify(VerifyArgs),
}

/// Show what a receipt says, without verifying it
#[derive(Debug, Args)]
struct ShowArgs {
    /// File with the receipt; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

/// Verify a receipt's signature, and the file itself if --data says where it is; needs no network
#[derive(Debug, Args)]
struct VerifyArgs {
    /// File with the receipt; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Folder of the receiver that the file lies in: its content is compared too
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Node key of the receiver that must have signed it, as `downpour ticket key` prints it there; a site's stands behind
    /// the # of its card
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    key: Option<PublicKey>,
}

impl ReceiptArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        match self.verb {
            ReceiptVerb::Show(args) => args.run(),
            ReceiptVerb::Verify(args) => args.run(),
        }
    }
}

impl ShowArgs {
    fn run(self) -> Result<Exit, Fault> {
        let signed = read(&self.file)?;
        if self.json {
            println!("{}", signed.to_json());
        } else {
            println!("{}", signed.receipt);
        }
        Ok(Exit::Complete)
    }
}

impl VerifyArgs {
    fn run(self) -> Result<Exit, Fault> {
        let signed = read(&self.file)?;
        let receipt = &signed.receipt;
        signed.verify().map_err(|_| {
            let what = format!("the receipt was changed, or {} never signed it", receipt.receiver);
            Fault::incomplete(what, "ask the receiver's site for the receipt again")
        })?;
        if let Some(key) = self.key.filter(|key| *key != receipt.receiver) {
            let what = format!("the receipt is signed by {}, not by {key}", receipt.receiver);
            return Err(Fault::incomplete(what, "ask the site whose key that is"));
        }
        if let Some(data) = &self.data {
            receipt.check_content(data).map_err(|wrong| {
                let at = data.join(&receipt.path);
                let what = format!("{} is not what the receipt says: {wrong}", at.display());
                Fault::incomplete(what, "look for the right folder, or have the file sent again")
            })?;
        }
        let what = match (&self.data, &self.key) {
            (Some(_), Some(_)) => "signature, signer and content are right",
            (Some(_), None) => "signature and content are right",
            (None, Some(_)) => "signature and signer are right; no content was looked at",
            (None, None) => "the signature is right; no content was looked at",
        };
        println!("{receipt}\n{what}");
        Ok(Exit::Complete)
    }
}

/// The longest form is JSON with all of its bytes escaped.
const FILE_BYTES_MAX: u64 = 8 * RECEIPT_BYTES_MAX as u64;

fn read(path: &PathBuf) -> Result<SignedFileReceipt, Fault> {
    let mut bytes = Vec::new();
    let done = if path.as_os_str() == "-" {
        io::stdin().lock().take(FILE_BYTES_MAX).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes))
    };
    done.map_err(|error| {
        let what = format!("{} cannot be read: {error}", path.display());
        Fault::start(what, "give the file that holds the receipt, or - for standard input")
    })?;
    SignedFileReceipt::parse(&bytes).map_err(|error| {
        let what = format!("{}: {error}", path.display());
        Fault::incomplete(what, "give one receipt: a line of receipts.ndjson, or its bytes")
    })
}

#[cfg(test)]
mod tests {
    use super::ReceiptArgs;
    use crate::cli::Exit;
    use crate::receipt::tests::receipt;
    use clap::{Args as _, FromArgMatches as _};
    use downpour_transport::identity::Identity;
    use std::fs;

    fn run(words: &[&str]) -> Exit {
        let command = ReceiptArgs::augment_args(clap::Command::new("receipt"));
        let words = ["receipt"].iter().chain(words);
        let matches = command.try_get_matches_from(words).expect("a command line");
        let args = ReceiptArgs::from_arg_matches(&matches).expect("a command line");
        args.run().unwrap_or_else(|fault| fault.exit)
    }

    #[test]
    fn a_tampered_receipt_other_content_and_another_key_fail() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (identity, other) = (Identity::generate(), Identity::generate());
        let json = receipt("file", b"content").sign(&identity).unwrap().to_json();
        fs::write(path("file"), b"content").unwrap();
        fs::write(path("good"), &json).unwrap();
        fs::write(path("tampered"), json.replace("berlin", "bergen")).unwrap();
        fs::write(path("nonsense"), "{}").unwrap();
        let (good, data, key) = (path("good"), path(""), identity.public_key().to_string());
        assert_eq!(run(&["show", &good]), Exit::Complete);
        assert_eq!(run(&["verify", &good]), Exit::Complete);
        assert_eq!(run(&["verify", &good, "--data", &data, "--key", &key]), Exit::Complete);
        let wrong = other.public_key().to_string();
        assert_eq!(run(&["verify", &good, "--key", &wrong]), Exit::Incomplete);
        assert_eq!(run(&["verify", &path("tampered")]), Exit::Incomplete);
        assert_eq!(run(&["verify", &path("nonsense")]), Exit::Incomplete);
        assert_eq!(run(&["verify", &path("absent")]), Exit::CouldNotStart);
        fs::write(path("file"), b"contend").unwrap();
        assert_eq!(run(&["verify", &good, "--data", &data]), Exit::Incomplete);
    }
}
