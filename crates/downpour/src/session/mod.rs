//! One delivery, as the product runs it: the glue between objects, the transport's drivers and the control
//! plane.
//!
//! | file | does |
//! | --- | --- |
//! | `open` | opens everything that a sender needs |
//! | `send` | waits for receivers, runs the session, ends it |
//! | `network` | interface, group, ports and symbol size from the plan |
//! | `roster` | what the sender knows of each receiver, and whether the session is over |
//! | `endpoint` | what receivers ask over HTTPS |
//! | `auto` | moves a receiver between stream and pulls |
//! | `narrow` | tells of a link that takes less than the least rate |
//! | `emit` | sections out of the hash-ahead, blocks into the driver |
//! | `feeding`, `unsent` | products out of their list, blocks into the driver; those of which nothing came |
//! | `carried`, `keeper` | what sender and receiver have in common of a manifest's and of products' sessions |
//! | `account` | progress and report |
//! | `receive`, `staying` | finds the sender, and again if it vanishes; takes part in session after session |
//! | `faults` | lower errors in the operator's words |
//! | `host` | who is shown how it goes, and can end it: a terminal, or a program |
//! | `signals` | counts what the terminal's user asks, and ends the process where a session cannot |
//! | `batch` | both ends as a library call: a list of files to one node |
//! | `attempt`, `asking` | one session as a receiver lives it; what it asks of its sender |
//! | `saying` | what it tells its sender meanwhile |
//! | `hearing` | where a receiver hears the stream |
//! | `ended` | how that ends, and what came of it |
//! | `transfer` | its connections, over a long way |
//! | `words` | what a receiver tells of files of a site that come as products |
//! | `standing` | a session of products as a library call, both ends: open until its owner ends it |
//!
//! Deliberately absent: protocol rules (`downpour-proto`) and anything that reads an option.

mod account;
mod asking;
mod attempt;
mod auto;
mod batch;
mod carried;
mod emit;
mod ended;
mod endpoint;
mod faults;
mod feeding;
mod hearing;
mod host;
mod keeper;
mod narrow;
mod network;
mod open;
mod receive;
mod roster;
mod saying;
mod send;
mod signals;
mod standing;
mod staying;
mod transfer;
mod unsent;
mod words;

pub use batch::{
    FilesEnd, ItemEnd, ReceiveFiles, ReceivedFiles, Running, SendFiles, SendTurns, SentFiles,
    receive_files, send_files,
};
pub(crate) use network::{own_addrs_of, range_len};
pub use receive::{MayOpen, receive};
pub use send::send;
pub use standing::{
    Heard, OpenSession, Opened, Reads, SendProducts, TakeProducts, send_products, take_products,
};
pub(crate) use transfer::{bounds, carrier};

/// Why a receiver leaves the stream when the sender says so.
const TOO_SLOW: &str = "it could not keep up with the others";
/// Why a receiver left the stream whose feedback does not come.
const UNHEARD: &str =
    "no answer of it comes to the sender by UDP, which may be a firewall there (`downpour ports`)";

/// Why one pulls to which nothing of it comes.
const NOT_HEARD: &str = "the stream was not heard for a while";
/// Why one pulls to which only what is short of it comes.
const ONLY_SHORT: &str = "of the stream only short datagrams came for a while: the way does not take those as long as symbols \
                          (see the MTU of its interfaces, or send with a smaller --mtu)";

/// Why another one leaves it.
const FALSE_SYMBOLS: &str = "somebody in the group sends false symbols";
