//! A page of files that do not move: one state after the other, each from where the last page ended.
//!
//! What is looked at for a page is bounded ([`CUTS_MAX`]), so one may be short, or empty, and not the last. Of a state in which few
//! files are the catalog finds all at once, whatever else is in the queue.

use downpour_catalog::{BadCursor, Cursor, Error, File, Query, Reader, State};
use std::fmt;
use std::str::FromStr;

/// Files on a page.
pub(super) const PAGE: usize = 200;
/// Searches for one page that find less than all of their state. Each looks at some thousands of files at most.
const CUTS_MAX: usize = 5;

/// Where a page begins: in the files of a state, or in those that are found in one go.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::dispatch) struct Place {
    state: Option<State>,
    /// After this one; `None`: at the first.
    after: Option<Cursor>,
}

impl Place {
    pub(super) const fn state(&self) -> Option<State> {
        self.state
    }
}

/// `queued/i17`, or the cursor alone.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.iter().try_for_each(|state| write!(f, "{state}/"))?;
        self.after.iter().try_for_each(|after| write!(f, "{after}"))
    }
}

impl FromStr for Place {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Self, BadCursor> {
        // A name in a cursor may have a slash, too; what is before it is no state.
        let state =
            text.split_once('/').and_then(|(state, rest)| Some((state.parse().ok()?, rest)));
        let (state, rest) = state.map_or((None, text), |(state, rest)| (Some(state), rest));
        let after = match (state, rest) {
            (Some(_), "") => None,
            _ => Some(rest.parse()?),
        };
        Ok(Self { state, after })
    }
}

/// Asks one query after the other from a place on, until the page is full; `keep` makes of the files that are found what stands on it.
/// With where the next page begins.
pub(super) fn find<T>(
    reader: &mut Reader,
    asked: &[Query],
    from: Place,
    mut keep: impl FnMut(&mut Reader, Vec<File>) -> Result<Vec<T>, Error>,
) -> Result<(Vec<T>, Option<Place>), Error> {
    let Place { state, mut after } = from;
    let mut at = asked.iter().position(|query| query.state == state).unwrap_or(0);
    let (mut found, mut cuts) = (Vec::new(), 0);
    while let Some(query) = asked.get(at) {
        let page = reader.search(query, after.as_ref(), PAGE - found.len())?;
        found.extend(keep(reader, page.files)?);
        after = page.next;
        match after {
            Some(_) => cuts += 1,
            None => at += 1,
        }
        if found.len() >= PAGE || cuts == CUTS_MAX {
            break;
        }
    }
    Ok((found, asked.get(at).map(|query| Place { state: query.state, after })))
}

#[cfg(test)]
mod tests {
    use super::Place;
    use downpour_catalog::{FileId, State};

    #[test]
    fn places_parse_as_they_are_shown() {
        use downpour_catalog::{Cursor, SiteId};
        let (id, name) = (Cursor::Id(FileId(17)), "queued/run".to_owned());
        let cursors = [Some(id.clone()), Some(Cursor::Name(name, SiteId(3), 2))];
        for after in cursors {
            let place = Place { state: None, after };
            assert_eq!(place.to_string().parse(), Ok(place));
        }
        for after in [None, Some(id)] {
            let place = Place { state: Some(State::Queued), after };
            assert_eq!(place.to_string().parse(), Ok(place));
        }
        for bad in ["", "/", "queued", "queue/i17", "queued/17"] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }
}
