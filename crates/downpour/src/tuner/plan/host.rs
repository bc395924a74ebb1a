//! What this machine's kernel allows a connection.

use downpour_proto::transfer::{Host, three};
use std::path::Path;

const SYS: &str = "/proc/sys/net";

/// The limits of this machine, and in its network namespace, now.
pub fn host() -> Host {
    below(Path::new(SYS))
}

/// The same from another folder: what cannot be read is not known.
fn below(folder: &Path) -> Host {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse().ok();
    let memory = |name: &str| three(read(name)?.split_whitespace());
    // What anybody may choose; what is merely there needs root.
    let allowed = read("ipv4/tcp_allowed_congestion_control").unwrap_or_default();
    let available = read("ipv4/tcp_available_congestion_control").unwrap_or_default();
    let default = read("ipv4/tcp_congestion_control").unwrap_or_default();
    let names = if is_root() { available } else { allowed };
    let mut congestion: Vec<String> = Vec::new();
    for name in default.split_whitespace().chain(names.split_whitespace()) {
        if !congestion.iter().any(|known| known == name) {
            congestion.push(name.to_owned());
        }
    }
    Host {
        rmem_max: number("core/rmem_max"),
        wmem_max: number("core/wmem_max"),
        tcp_rmem: memory("ipv4/tcp_rmem"),
        tcp_wmem: memory("ipv4/tcp_wmem"),
        congestion,
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::below;
    use downpour_proto::transfer::Host;

    #[test]
    fn what_cannot_be_read_is_not_known() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        std::fs::create_dir(dir.join("core")).unwrap();
        std::fs::create_dir(dir.join("ipv4")).unwrap();
        assert_eq!(below(dir), Host::default());
        std::fs::write(dir.join("core/rmem_max"), "212992\n").unwrap();
        std::fs::write(dir.join("ipv4/tcp_rmem"), "4096\t131072\t6291456\n").unwrap();
        std::fs::write(dir.join("ipv4/tcp_wmem"), "nothing\n").unwrap();
        std::fs::write(dir.join("ipv4/tcp_congestion_control"), "cubic\n").unwrap();
        for list in ["allowed", "available"] {
            let file = format!("ipv4/tcp_{list}_congestion_control");
            std::fs::write(dir.join(file), "reno cubic\n").unwrap();
        }
        let text = "rmem_max=212992 tcp_rmem=4096,131072,6291456 congestion=cubic,reno";
        assert_eq!(below(dir).to_string(), text);
    }
}
