//! What can be asked of the catalog, and how it answers.
//!
//! Each [`Change`] is atomic and is answered by itself: one that is refused spoils no other. Each can be
//! repeated after a crash without harm. A repeated one is answered as the first was; it is known by its key:
//! site, name and stamp of a file taken in; file and revision of a move; the record's own key elsewhere.

use crate::class::ErrorClass;
use crate::life::{Reason, State};
use crate::link::{Decision, LinkSeen};
use crate::record::{
    Delivery, Digest, Fence, FileId, Receipt, Replica, Revision, RuleId, Session, SiteId, Time,
    Transfer, TransferId,
};

/// Longest name, in bytes: what the least of the databases can index.
pub const NAME_BYTES_MAX: usize = 1024;
/// Longest path of a replica, in bytes: Linux's PATH_MAX.
pub const PATH_BYTES_MAX: usize = 4096;
/// Longest signed receipt, in bytes.
pub const RECEIPT_BYTES_MAX: usize = 16 << 10;
/// Longest reason of a decision, in bytes.
pub const WHY_BYTES_MAX: usize = 2048;
/// Longest node key, in bytes.
pub const KEY_BYTES_MAX: usize = 64;

/// Longest name of a site, a rule or a session, in bytes.
pub const WORD_BYTES_MAX: usize = 255;
/// Longest file, in bytes: the databases' integers hold the sum of a thousand such files.
pub const FILE_BYTES_MAX: u64 = 1 << 53;

/// What to do with other content under a name that the catalog has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherContent {
    /// It becomes the name's next version.
    NewVersion,
    /// It is refused.
    Refuse,
}

/// Which file of the same content is the one that is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Same {
    /// Any: what was taken in once is not taken in again.
    Any,
    /// One that goes by the same rule and was not given up; another one stays as it is, and this becomes the name's next version.
    OfRule,
    /// This one, written on before anybody read it; if it is not so any more, nothing is taken in.
    Unread(FileId),
}

/// A file seen at its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFile {
    /// Where it comes from.
    pub site: SiteId,
    /// Its name within the site.
    pub name: String,
    /// Its length.
    pub size: u64,
    /// Tells one content of a name from another before digests are known; made by the finder of modification
    /// time, inode and length. The same stamp is the same file, seen again; 0 is like no other. Another stamp of a file
    /// that nobody has read yet (no digest is recorded) is that file, written on: its stamp and length are corrected. Not so of
    /// one that goes by a transfer and another rule.
    pub stamp: i64,
    /// The rule that takes it in.
    pub rule: RuleId,
    /// Lower goes first.
    pub rank: i64,
    /// The transfer that wants it; what is there and goes by none goes by this one then.
    pub transfer: Option<TransferId>,
    /// What to do if the name is taken.
    pub other_content: OtherContent,
    /// What is taken to be this file.
    pub same: Same,
}

/// A file taken in as it lies. Its content is known, so a stamp is not needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdoptedFile {
    /// Where it comes from.
    pub site: SiteId,
    /// Its name within the site.
    pub name: String,
    /// Its length.
    pub size: u64,
    /// The rule that takes it in.
    pub rule: RuleId,
    /// Its identity: BLAKE3.
    pub digest: Digest,
    /// Its digests of other kinds; each is recorded once, as by [`Change::Digest`].
    pub others: Vec<Digest>,
    /// Where it lies: site and path of each replica.
    pub replicas: Vec<(SiteId, String)>,
    /// What to do if the name is taken; passed over where `origin` says which version it is.
    pub other_content: OtherContent,
    /// What its site of origin says of it; `None` for a file of our own that was never taken in.
    pub origin: Option<Origin>,
    /// The receipt that was signed for it, in the same commit. Which file it is of need not be known: that is passed over.
    pub receipt: Option<Receipt>,
}

/// What a file's site of origin says of it, so that both catalogs speak of the same file and sort it into the same day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its version there.
    pub version: i64,
    /// When it was taken in there.
    pub taken_in: Time,
}

/// Where a file goes next, with what belongs to it in the same commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Complete at its source, with this length.
    Settled {
        /// Its length now.
        size: u64,
    },
    /// Its digests; one of them BLAKE3.
    Hashed(Vec<Digest>),
    /// Ready to be sent.
    Queued,
    /// All bytes are said to be there.
    Sent {
        /// Bytes moved by this attempt.
        bytes: u64,
    },
    /// The destination found the digest; where it lies there.
    Verified(SiteId, String),
    /// The destination's receipt.
    Receipted(Receipt),
    /// Tried again later. One that goes by no session yet, and is put back for others to have their turn ([`Reason::Turn`], no error),
    /// was not tried: it has one try less, and no attempt is written down.
    Waiting {
        /// Why.
        reason: Reason,
        /// The error behind it.
        error: Option<ErrorClass>,
        /// When.
        next_try: Time,
        /// Bytes moved by the attempt that this ends, if it ends one.
        bytes: u64,
    },
    /// Back to where it can start again: a waiting file early, a quarantined one by release.
    Resumed,
    /// Set apart.
    Quarantined(ErrorClass),
    /// Given up.
    Cancelled,
}

/// One step of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which file.
    pub file: FileId,
    /// The revision that the caller knows it at.
    pub at: Revision,
    /// The lease under which the caller acts; `None` for a file that nobody holds, and for an operator,
    /// who may cancel a file that is held.
    pub fence: Option<Fence>,
    /// Where to.
    pub next: Next,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Takes a file in as `found`, or finds that it is there.
    TakeIn(NewFile),
    /// Takes a file in as `adopted`, or adds replicas to the one that is there.
    Adopt(AdoptedFile),
    /// Moves a file through its life cycle.
    Move(Move),
    /// Keeps a lease until `until`.
    Renew {
        /// Which file.
        file: FileId,
        /// The lease.
        fence: Fence,
        /// Its new end.
        until: Time,
    },
    /// A file that is held goes by this session, as receipts will name it.
    InSession {
        /// Which file.
        file: FileId,
        /// The lease.
        fence: Fence,
        /// The session.
        session: String,
    },
    /// Records another digest of a file.
    Digest(FileId, Digest),
    /// Records what is known of a replica.
    Replica(Replica),
    /// Records a further receipt; the one that ends a file comes with its move.
    Receipt(Receipt),
    /// Records a transfer.
    Transfer(Transfer),
    /// Records a session, or its end.
    Session(Session),
    /// Records how far a receiver is with a file.
    Delivery(Delivery),
    /// Records what was seen on a link. Of each link a writer keeps its newest.
    LinkSeen(LinkSeen),
    /// Records what was decided on a link, in the same way.
    Decision(Decision),
}

/// A change that is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The file; 0 where the change is of no file.
    pub file: FileId,
    /// Its revision now.
    pub revision: Revision,
    /// Where it stands now.
    pub state: Option<State>,
    /// Whether it was so before: the change had been made already.
    pub repeated: bool,
    /// The transfer by which it goes, until it has ended.
    pub transfer: Option<TransferId>,
}

/// Why a change was not made. Nothing of it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no such file.
    #[error("no file {0}")]
    NoSuchFile(FileId),
    /// The life cycle has no such transition.
    #[error("a file that is {from} cannot become {to}")]
    NotAllowed {
        /// Where it stands.
        from: State,
        /// Where it was to go.
        to: State,
    },
    /// The file changed since.
    #[error("the file is {state} at revision {revision} by now")]
    Stale {
        /// Its revision.
        revision: Revision,
        /// Where it stands.
        state: State,
    },
    /// Another has the lease, or it has ended.
    #[error("the lease is not held, or was lost")]
    NoLease,
    /// Only an error of the file itself sets it apart.
    #[error("`{0}` is not the file's own fault: it waits, it is not set apart")]
    NotTheFilesFault(ErrorClass),
    /// The name is there with other content, which was not given up.
    #[error("the name is taken by other content, version {version}")]
    NameTaken {
        /// The newest of these versions.
        version: i64,
    },
    /// The digest is recorded with another value.
    #[error("another {0} is recorded for this file")]
    DigestDiffers(crate::record::DigestKind),
    /// Something is missing, too long, or not text that all databases hold.
    #[error("{0}")]
    Malformed(&'static str),
}

/// How a change is answered.
pub type Answer = Result<Applied, Refused>;

/// A file whose lease was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// Which file.
    pub file: FileId,
    /// Proof of the lease.
    pub fence: Fence,
    /// Its revision now.
    pub revision: Revision,
    /// Where it stands: `sending` for one from the queue.
    pub state: State,
    /// Its length.
    pub size: u64,
}

/// Who may have a file: a site with a present replica, by whose key there is a receipt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// The site; one that the catalog does not know has nothing.
    pub site: SiteId,
    /// The key that it signs with.
    pub receiver: Vec<u8>,
}

/// Who is to have the files of a rule. What all who ask have is passed over while too few of all have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Takers {
    /// Those who can take files now.
    pub asking: Vec<Holder>,
    /// Those who cannot.
    pub others: Vec<Holder>,
    /// With so many of all of them a file has come to its end.
    pub required: usize,
}

/// Which files to claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Those of a rule that are queued, lowest rank first; they become `sending`.
    QueuedOf(RuleId),
    /// The same, for some of those who are to have them.
    QueuedFor(RuleId, Takers),
    /// Those whose lease has ended; one that was `sending` begins a new attempt, others stay where they are.
    Lapsed,
}
