//! Where a program's bytes go that are verified and not kept: each is compared with the payload as it comes.
//!
//! For programs that can write to a pipe or are the lab's own. What does not compare ends the program with an error, so that its
//! receiver counts as failed.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

const BUFFER_BYTES: usize = 1 << 20;

/// What is said when all has come, although more might.
pub(crate) const WHOLE: &str = "the payload is here";

/// Takes all of `input`, which must be what is in the file `payload`.
pub(crate) fn compare(mut input: impl Read, payload: &Path) -> io::Result<()> {
    let mut genuine = File::open(payload)?;
    let mut left = genuine.metadata()?.len();
    let (mut came, mut wanted) = (vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
    loop {
        let len = input.read(&mut came)?;
        if len == 0 {
            break;
        }
        left = left.checked_sub(len as u64).ok_or_else(|| differs("there is more"))?;
        genuine.read_exact(&mut wanted[..len])?;
        if came[..len] != wanted[..len] {
            return Err(differs("bytes are others"));
        }
        if left == 0 {
            eprintln!("{WHOLE}");
        }
    }
    if left > 0 { Err(differs("there is less")) } else { Ok(()) }
}

fn differs(how: &str) -> io::Error {
    io::Error::other(format!("not the payload: {how}"))
}

#[cfg(test)]
mod tests {
    use super::compare;
    use std::fs;

    #[test]
    fn only_the_payload_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("payload");
        let payload = vec![7; 2_500_000];
        fs::write(&path, &payload).unwrap();
        assert!(compare(&payload[..], &path).is_ok());
        let mut other = payload.clone();
        other[2_400_000] = 8;
        let more = [&payload[..], &[7]].concat();
        for (bytes, how) in [(&other[..], "others"), (&payload[1..], "less"), (&more, "more")] {
            assert!(compare(bytes, &path).unwrap_err().to_string().contains(how));
        }
    }
}
