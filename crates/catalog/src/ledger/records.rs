//! Digests, replicas, receipts, transfers, sessions and deliveries in a batch: each a row under its own key, and an event.

use super::{Batch, Told, code};
use crate::change::{
    Answer, Applied, Change, FILE_BYTES_MAX, KEY_BYTES_MAX, Next, PATH_BYTES_MAX,
    RECEIPT_BYTES_MAX, Refused,
};
use crate::class::ErrorClass;
use crate::record::{
    Delivery, Digest, DigestKind, EventKind, FileId, Receipt, Replica, Revision, Session, Time,
    Transfer,
};
use crate::schema;
use crate::sql::{Put, Row, Table, Value};

/// The file that a change is about, if it is about one that must be there.
pub(super) fn subject(change: &Change) -> Option<FileId> {
    match change {
        Change::Move(step) => Some(step.file),
        Change::Renew { file, .. } | Change::InSession { file, .. } | Change::Digest(file, _) => {
            Some(*file)
        }
        Change::Replica(replica) => Some(replica.file),
        Change::Receipt(receipt) => Some(receipt.file),
        Change::Delivery(delivery) => Some(delivery.file),
        Change::TakeIn(_) | Change::Adopt(_) | Change::Transfer(_) | Change::Session(_) => None,
        Change::LinkSeen(_) | Change::Decision(_) => None,
    }
}

/// The file whose recorded digests decide about a change.
pub(super) fn needs_digests(change: &Change) -> Option<FileId> {
    match change {
        Change::Digest(file, _) => Some(*file),
        Change::Move(step) if matches!(step.next, Next::Hashed(_)) => Some(step.file),
        // What enters a set digest, or leaves it.
        _ => super::sets::touches(change),
    }
}

impl Batch<'_> {
    pub(super) fn record_digest(&mut self, now: Time, file: FileId, digest: &Digest) -> Answer {
        let revision = self.revision(file)?;
        self.check_digest(file, digest)?;
        if self.digests.contains_key(&(file, digest.kind())) {
            return Ok(self.stands(file, true));
        }
        self.note_digest(file, digest);
        self.tell(now, Told::recorded(EventKind::Digest, file.0, revision));
        Ok(self.stands(file, false))
    }

    /// A digest is recorded once; another value is other content.
    pub(super) fn check_digest(&self, file: FileId, digest: &Digest) -> Result<(), Refused> {
        let recorded = self.digests.get(&(file, digest.kind()));
        if recorded.is_some_and(|value| value != digest.value()) {
            return Err(Refused::DigestDiffers(digest.kind()));
        }
        Ok(())
    }

    pub(super) fn note_digest(&mut self, file: FileId, digest: &Digest) {
        let kind = digest.kind();
        if self.digests.insert((file, kind), digest.value().to_vec()).is_none() {
            if kind == DigestKind::Blake3 {
                self.digest_becomes_known(file);
            }
            let value = Value::Bytes(digest.value().to_vec());
            let row = vec![file.0.into(), i64::from(kind.code()).into(), value];
            self.note(&schema::DIGEST, Put::Insert, row);
        }
    }

    /// The file has other content from now on: none of its digests is that one's.
    pub(super) fn forget_digests(&mut self, file: FileId) {
        for (table, how, rows) in &mut self.out {
            if table.name == schema::DIGEST.name && *how == Put::Insert {
                rows.retain(|row| row[0].as_int() != file.0);
            }
        }
        for kind in DigestKind::ALL {
            if self.digests.remove(&(file, *kind)).is_some() {
                let key = vec![file.0.into(), i64::from(kind.code()).into()];
                self.note(&schema::DIGEST, Put::Delete, key);
            }
        }
    }

    pub(super) fn record_replica(&mut self, now: Time, replica: &Replica) -> Answer {
        let revision = self.revision(replica.file)?;
        if !is_text(&replica.path, PATH_BYTES_MAX) {
            return Err(Refused::Malformed("a path is too long or holds a zero byte"));
        }
        self.note_replica(now, replica);
        self.tell(now, Told::recorded(EventKind::Replica, replica.file.0, revision));
        Ok(self.stands(replica.file, false))
    }

    pub(super) fn note_replica(&mut self, now: Time, replica: &Replica) {
        self.replica_becomes(replica.file, replica.site, replica.state);
        let row = self.called(replica.file).replica_row(replica, now);
        self.note(&schema::REPLICA, Put::Upsert, row);
    }

    pub(super) fn record_receipt(&mut self, now: Time, receipt: &Receipt) -> Answer {
        let revision = self.revision(receipt.file)?;
        check_receipt(receipt)?;
        self.note_receipt(receipt);
        self.tell(now, Told::recorded(EventKind::Receipt, receipt.file.0, revision));
        Ok(self.stands(receipt.file, false))
    }

    pub(super) fn note_receipt(&mut self, receipt: &Receipt) {
        let row = vec![
            receipt.file.0.into(),
            Value::Bytes(receipt.receiver.clone()),
            receipt.at.0.into(),
            Value::Bytes(receipt.signed.clone()),
        ];
        self.note(&schema::RECEIPT, Put::Upsert, row);
    }

    pub(super) fn record_transfer(&mut self, now: Time, transfer: &Transfer) -> Answer {
        let row = vec![
            transfer.id.0.into(),
            transfer.from.0.into(),
            transfer.to.0.into(),
            transfer.submitted.0.into(),
        ];
        self.record(now, &schema::TRANSFER, row, EventKind::Transfer, transfer.id.0)
    }

    pub(super) fn record_session(&mut self, now: Time, session: &Session) -> Answer {
        let row = vec![
            session.id.0.into(),
            i64::from(session.stream.0).into(),
            session.rule.0.into(),
            session.started.0.into(),
            session.ended.unwrap_or_default().0.into(),
        ];
        self.record(now, &schema::SESSION, row, EventKind::Session, session.id.0)
    }

    /// What belongs to no file.
    pub(super) fn record(
        &mut self,
        now: Time,
        table: &'static Table,
        row: Row,
        kind: EventKind,
        id: i64,
    ) -> Answer {
        self.note(table, Put::Upsert, row);
        self.tell(now, Told::recorded(kind, id, Revision(0)));
        let revision = Revision(0);
        Ok(Applied { file: FileId(0), revision, state: None, repeated: false, transfer: None })
    }

    pub(super) fn record_delivery(&mut self, now: Time, delivery: &Delivery) -> Answer {
        let revision = self.revision(delivery.file)?;
        if delivery.receiver.len() > KEY_BYTES_MAX {
            return Err(Refused::Malformed("a node key is too long"));
        }
        let row = vec![
            delivery.session.0.into(),
            delivery.file.0.into(),
            Value::Bytes(delivery.receiver.clone()),
            i64::from(delivery.state.code()).into(),
            code(delivery.error.map(ErrorClass::code)),
            now.0.into(),
        ];
        self.note(&schema::DELIVERY, Put::Upsert, row);
        self.tell(now, Told::recorded(EventKind::Delivery, delivery.file.0, revision));
        Ok(self.stands(delivery.file, false))
    }

    fn revision(&self, file: FileId) -> Result<Revision, Refused> {
        let standing = self.files.get(&file).ok_or(Refused::NoSuchFile(file))?;
        Ok(standing.revision)
    }
}

pub(super) fn check_receipt(receipt: &Receipt) -> Result<(), Refused> {
    if receipt.receiver.len() > KEY_BYTES_MAX || receipt.signed.len() > RECEIPT_BYTES_MAX {
        return Err(Refused::Malformed("a receipt or its node key is too long"));
    }
    Ok(())
}

/// A length that can be summed up with others.
pub(super) fn check_size(size: u64) -> Result<i64, Refused> {
    let size = i64::try_from(size).ok().filter(|_| size <= FILE_BYTES_MAX);
    size.ok_or(Refused::Malformed("it is longer than any file may be, 8 PiB"))
}

/// Text that all three databases hold.
pub(super) fn is_text(text: &str, bytes_max: usize) -> bool {
    text.len() <= bytes_max && !text.contains('\0')
}
