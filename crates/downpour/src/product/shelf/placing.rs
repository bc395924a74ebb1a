//! How what a shelf has verified gets its place, and where its bytes are before.

use super::super::clerk::{Clerk, Failure, Fate};
use super::super::file::SiteFile;
use super::super::folder::Staged;
use super::{Body, Shelf, State};
use crate::object::{PlaceError, StoreFailure, Why};
use downpour_catalog::ErrorClass;

impl Shelf {
    /// Gives a product its place; or says why it, alone, has none.
    pub(super) fn place(
        &self,
        number: u64,
        named: (&str, [u8; 32]),
        staged: Result<Option<Staged>, Why>,
    ) -> Result<Option<Why>, StoreFailure> {
        match (&self.folder, staged) {
            (Some(folder), Ok(file)) => match folder.place(number, named, file) {
                Ok(()) => Ok(None),
                Err(error) => error.of_object(Some(number)).map(Some),
            },
            (_, staged) => Ok(staged.err()),
        }
    }

    /// Gives a file of a site its place; or says which has none, and why. A sync that has failed ends the attempt: what is
    /// staged counts no more.
    pub(super) fn keep(
        &self,
        (clerk, state): (&Clerk, &State),
        (number, name): (u64, &str),
        fate: Fate,
        (digest, staged): ([u8; 32], Result<Option<Staged>, Why>),
    ) -> Result<Option<(String, String)>, StoreFailure> {
        let fails = |why: &str| Ok(Some((name.to_owned(), why.to_owned())));
        let (file, why): (SiteFile, Failure) = match fate {
            Fate::Stray => return fails("it is no file of a site"),
            Fate::Here(receipt) => {
                clerk.here(receipt);
                return Ok(None);
            }
            Fate::Refused(file, why) => (file, why),
            Fate::Left => return fails("it came while this receiver left"),
            Fate::Taken(file, _room) => {
                let placed = match (&self.folder, staged) {
                    (Some(folder), Ok(staged)) => {
                        folder.place_file(number, (&file, digest), staged)
                    }
                    (Some(_), Err(why)) => Err((ErrorClass::DestinationWriteFailed, why.text)),
                    (None, _) => {
                        Err((ErrorClass::DestinationRefused, "nothing is kept here".into()))
                    }
                };
                match placed {
                    Ok(placed) => {
                        return clerk.placed(file, placed).map(|()| None).map_err(|why| {
                            if state.unattended {
                                // That comes not again, and the next shelf's sync need not fail.
                                self.unsynced.get_or_init(|| why.clone());
                            }
                            StoreFailure::Target(why)
                        });
                    }
                    Err(why) => (file, why),
                }
            }
        };
        clerk.failed(&file, &why);
        Ok(Some((file.path, why.1)))
    }

    pub(super) fn write(&self, body: &mut Body, bytes: &[u8]) -> Result<(), StoreFailure> {
        let Some(folder) = &self.folder else { return Ok(()) };
        if body.fate.as_ref().is_some_and(|fate| !fate.keeps_bytes()) {
            return Ok(());
        }
        let Ok(file) = &mut body.staged else { return Ok(()) };
        let Err(error) = folder.write(body.head.number, file, bytes) else { return Ok(()) };
        match (error, body.fate.take()) {
            // That is told of it, and it comes again: who left for it would be away to its sender.
            (PlaceError::Full(what), Some(Fate::Taken(file, _room))) => {
                body.fate = Some(Fate::Refused(file, (ErrorClass::DestinationFull, what)));
            }
            (error, fate) => {
                body.fate = fate;
                body.staged = Err(error.of_object(Some(body.head.number))?);
            }
        }
        Ok(())
    }
}
