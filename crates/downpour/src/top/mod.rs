//! `downpour top`: a site on one page of a terminal, over the same API as every other verb.
//!
//! | file | what |
//! | --- | --- |
//! | `state` | what is known of the site, and what the person before it is doing |
//! | `keys` | a key changes the state, and may be a [`Command`] to the daemon |
//! | `page` | the state drawn: nothing but the state decides what is on the page |
//! | `words` | events, as the page tells them |
//! | `live` | asks the daemon, hears its events, reads keys, draws |
//!
//! `state`, `keys` and `page` know neither terminal nor network nor clock: times are the daemon's.

mod keys;
mod live;
mod page;
mod state;
mod words;

pub use keys::Command;
pub use live::{look, run};
pub use page::text;
pub use state::{Contact, Flow, Look, Mode, Pane, Said, State};
