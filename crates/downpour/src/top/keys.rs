//! What a key does: it moves about, or it is a command to the daemon. What cuts something off, or touches many, is asked back first.

use super::state::{Mode, Pane, Said, State};
use crate::dispatch::{Files, LinkWanted, Why};
use crate::site::Stage;
use crate::spool::Meant;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};

/// Rows that a page's key moves.
const PAGE: usize = 10;
/// Letters of a file's name in a question, which has one line: its end tells more.
const NAME: usize = 24;
/// The keys, for the help.
pub(super) const KEYS: &[(&str, &str)] = &[
    ("Tab, Shift-Tab, 1 to 5", "another part of the page"),
    ("Up, Down, PgUp, PgDn, Home, End", "another row (also k, j, g, G)"),
    ("r", "service: restart. Waiting file: try now, or release from quarantine"),
    ("R", "try or release all files that are shown"),
    ("p", "service: drain, start. Link, transfer: drain the link, open it"),
    ("s", "service: stop, start"),
    ("S", "stop all services, or start all when none runs"),
    ("b", "link: ban; a banned one: open"),
    ("c", "waiting file: give it up"),
    ("/", "show only rows with a text; Esc shows all"),
    ("?", "these keys"),
    ("q, Ctrl-C", "leave; the daemon goes on"),
];

/// What is asked of the daemon, or of `top` itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Something with a service, or with `all`.
    Service {
        /// Its name.
        name: String,
        /// `start`, `stop`, `drain`, `restart`.
        verb: &'static str,
    },
    /// Something with a link.
    Link {
        /// The other site.
        site: String,
        /// `open`, `drain`, `ban`.
        verb: &'static str,
    },
    /// Something with a file.
    File {
        /// Its number.
        file: i64,
        /// Its name.
        name: String,
        /// `retry`, `release`, `cancel`.
        verb: &'static str,
        /// Whether its spool does it.
        is_aside: bool,
    },
    /// Try some and release others.
    Again {
        /// Those that wait.
        retry: Vec<i64>,
        /// Those in quarantine.
        release: Vec<i64>,
        /// Those in the quarantines of spools.
        aside: Vec<i64>,
    },
    /// Leave.
    Quit,
}

impl Command {
    /// The requests that it takes: what each does in words, its path and its body.
    pub fn requests(&self) -> Vec<(String, String, Value)> {
        let of_files = |words: String, verb: &str, files: &[i64]| {
            let body = json!(Files { files: files.to_vec(), ..Files::default() });
            (words, format!("/v1/files/{verb}"), body)
        };
        let of_spool = |words: String, file: &i64| {
            let body = json!(Meant { file: file.to_string() });
            (words, "/v1/spools/release".to_owned(), body)
        };
        let one = |path: String| vec![(self.words(), path, json!({}))];
        match self {
            Self::Service { name, verb } => one(format!("/v1/services/{name}/{verb}")),
            Self::Link { site, verb } => one(format!("/v1/links/{site}/{verb}")),
            Self::File { file, verb: "release", is_aside: true, .. } => {
                vec![of_spool(self.words(), file)]
            }
            Self::File { file, verb, .. } => vec![of_files(self.words(), verb, &[*file])],
            Self::Again { retry, release, aside } => {
                let both = [("retry", retry), ("release", release)];
                let some = both.into_iter().filter(|(_, files)| !files.is_empty());
                let words = |verb, files: &[i64]| format!("{verb} {} files", files.len());
                let of_files = some.map(|(verb, files)| of_files(words(verb, files), verb, files));
                let of_spools = aside.iter().map(|file| of_spool(format!("release {file}"), file));
                of_files.chain(of_spools).collect()
            }
            Self::Quit => Vec::new(),
        }
    }

    /// What it does, in words.
    pub fn words(&self) -> String {
        match self {
            Self::Service { name, verb } if name == "all" => format!("{verb} all services"),
            Self::Service { name, verb } => format!("{verb} service {name}"),
            Self::Link { site, verb } => format!("{verb} the link to {site}"),
            Self::File { file, name, verb, .. } => format!("{verb} file {file}, {}", end_of(name)),
            Self::Again { retry, release, aside } => {
                let release = release.len() + aside.len();
                format!("retry {} files, release {release} from quarantine", retry.len())
            }
            Self::Quit => "leave".to_owned(),
        }
    }

    /// Whether it is asked back: it cuts something off, or touches many.
    fn is_grave(&self) -> bool {
        match self {
            Self::Service { name, verb } => name == "all" || *verb == "stop" || *verb == "restart",
            Self::Link { verb, .. } => *verb == "ban",
            Self::File { verb, .. } => *verb == "cancel",
            Self::Again { .. } => true,
            Self::Quit => false,
        }
    }
}

fn end_of(name: &str) -> String {
    match name.chars().count().checked_sub(NAME) {
        None | Some(0) => name.to_owned(),
        Some(over) => format!("…{}", name.chars().skip(over).collect::<String>()),
    }
}

impl State {
    /// A key was pressed.
    pub fn press(&mut self, key: KeyEvent) -> Option<Command> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return (key.code == KeyCode::Char('c')).then_some(Command::Quit);
        }
        match std::mem::replace(&mut self.mode, Mode::Looking) {
            Mode::Sure(command) => {
                let meant = matches!(key.code, KeyCode::Char('y' | 'Y'));
                let text = format!("not done: {}", command.words());
                self.said = (!meant).then_some(Said { good: true, text });
                return meant.then_some(command);
            }
            // Any key leaves the help.
            Mode::Help => return None,
            Mode::Filtering => {
                self.write(key.code);
                return None;
            }
            Mode::Looking => {}
        }
        let command = self.act(key.code)?;
        self.said = None;
        if command.is_grave() {
            self.mode = Mode::Sure(command);
            return None;
        }
        Some(command)
    }

    /// A letter of the filter.
    fn write(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => return,
            KeyCode::Esc => return self.show_all(),
            _ => {}
        }
        self.mode = Mode::Filtering;
        self.change(&Pane::ALL, |state| match code {
            KeyCode::Backspace => drop(state.filter.pop()),
            KeyCode::Char(letter) => state.filter.push(letter),
            _ => {}
        });
    }

    fn show_all(&mut self) {
        self.change(&Pane::ALL, |state| state.filter.clear());
    }

    fn act(&mut self, code: KeyCode) -> Option<Command> {
        let (row, last) = (self.row(), self.count(self.pane).0.saturating_sub(1));
        match code {
            KeyCode::Char('q') => return Some(Command::Quit),
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Char('/') => self.mode = Mode::Filtering,
            KeyCode::Esc => {
                self.said = None;
                self.show_all();
            }
            KeyCode::Tab => self.turn(1),
            KeyCode::BackTab => self.turn(Pane::ALL.len() - 1),
            KeyCode::Char(digit @ '1'..='5') => {
                self.pane = Pane::ALL[usize::from(digit as u8 - b'1')];
            }
            KeyCode::Up | KeyCode::Char('k') => self.move_to(row.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.move_to(row + 1),
            KeyCode::PageUp => self.move_to(row.saturating_sub(PAGE)),
            KeyCode::PageDown => self.move_to(row + PAGE),
            KeyCode::Home | KeyCode::Char('g') => self.move_to(0),
            KeyCode::End | KeyCode::Char('G') => self.move_to(last),
            KeyCode::Char('r') => return self.again(),
            KeyCode::Char('R') => return self.all_again(),
            KeyCode::Char('p') => return self.pause(),
            KeyCode::Char('s') => return self.stop_or_start(),
            KeyCode::Char('S') => return Some(self.stop_or_start_all()),
            KeyCode::Char('b') => return self.ban(),
            KeyCode::Char('c') => return Some(of_file(self.file()?, "cancel")),
            _ => {}
        }
        None
    }

    fn turn(&mut self, by: usize) {
        self.pane = Pane::ALL[(self.pane.index() + by) % Pane::ALL.len()];
    }

    /// The service under the cursor, and whether it works.
    fn service(&self) -> Option<(String, bool)> {
        let service = *self.services().get(self.row())?;
        let works = matches!(service.stage, Stage::Running | Stage::Failed);
        (self.pane == Pane::Services).then(|| (service.name.clone(), works))
    }

    /// The link under the cursor, or that of the transfer there, and what is wanted of it.
    fn link(&self) -> Option<(String, LinkWanted)> {
        let site = match self.pane {
            Pane::Links => self.links().get(self.row())?.site.clone(),
            Pane::Transfers => self.transfers().get(self.row())?.batch.site.clone(),
            _ => return None,
        };
        let link = self.look.links.iter().find(|link| link.site == site);
        Some((site, link.map_or(LinkWanted::Open, |link| link.wanted)))
    }

    /// The file under the cursor.
    fn file(&self) -> Option<&Why> {
        self.waiting().get(self.row()).copied().filter(|_| self.pane == Pane::Waiting)
    }

    fn again(&self) -> Option<Command> {
        if let Some((name, _)) = self.service() {
            return Some(Command::Service { name, verb: "restart" });
        }
        let file = self.file()?;
        Some(of_file(file, if file.state == "quarantined" { "release" } else { "retry" }))
    }

    fn all_again(&self) -> Option<Command> {
        let of = |state: &str, is_aside: bool| {
            let is_meant = |why: &&Why| why.state == state && why.is_aside == is_aside;
            let meant = self.waiting().into_iter().filter(is_meant);
            meant.map(|why| why.file).collect::<Vec<_>>()
        };
        let retry = of("waiting", false);
        let (release, aside) = (of("quarantined", false), of("quarantined", true));
        let is_none = retry.is_empty() && release.is_empty() && aside.is_empty();
        (!is_none).then_some(Command::Again { retry, release, aside })
    }

    fn pause(&self) -> Option<Command> {
        if let Some((name, works)) = self.service() {
            return Some(Command::Service { name, verb: if works { "drain" } else { "start" } });
        }
        let (site, wanted) = self.link()?;
        let is_open = wanted == LinkWanted::Open;
        Some(Command::Link { site, verb: if is_open { "drain" } else { "open" } })
    }

    fn stop_or_start(&self) -> Option<Command> {
        let (name, works) = self.service()?;
        Some(Command::Service { name, verb: if works { "stop" } else { "start" } })
    }

    fn stop_or_start_all(&self) -> Command {
        // The door always runs.
        let works = |service: &&crate::site::ServiceReport| {
            service.name != "endpoint" && matches!(service.stage, Stage::Running | Stage::Failed)
        };
        let any = self.look.services.iter().any(|service| works(&service));
        Command::Service { name: "all".to_owned(), verb: if any { "stop" } else { "start" } }
    }

    fn ban(&self) -> Option<Command> {
        let (site, wanted) = self.link()?;
        let is_banned = wanted == LinkWanted::Banned;
        Some(Command::Link { site, verb: if is_banned { "open" } else { "ban" } })
    }
}

fn of_file(why: &Why, verb: &'static str) -> Command {
    let (file, name, is_aside) = (why.file, why.name.clone(), why.is_aside);
    Command::File { file, name, verb, is_aside }
}

#[cfg(test)]
mod tests {
    use super::Command;
    use crate::dispatch::LinkWanted;
    use crate::top::page::tests::example;
    use crate::top::{Mode, Pane, State};
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use serde_json::json;

    fn press(state: &mut State, keys: &str) -> Option<Command> {
        let mut command = None;
        for letter in keys.chars() {
            let code = match letter {
                '\t' => KeyCode::Tab,
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                letter => KeyCode::Char(letter),
            };
            command = state.press(KeyEvent::new(code, KeyModifiers::NONE));
        }
        command
    }

    fn service(name: &str, verb: &'static str) -> Option<Command> {
        Some(Command::Service { name: name.into(), verb })
    }

    fn link(site: &str, verb: &'static str) -> Option<Command> {
        Some(Command::Link { site: site.into(), verb })
    }

    fn file(file: i64, verb: &'static str) -> Option<Command> {
        let name = if file == 41 { "run17/a.root" } else { "run17/bad.root" };
        Some(Command::File { file, name: name.into(), verb, is_aside: false })
    }

    #[test]
    fn each_key_works_on_the_row_under_the_cursor() {
        let mut state = example();
        // Services: dispatch runs, spool is stopped. What ends one is asked back.
        assert_eq!(press(&mut state, "1p"), service("dispatch", "drain"));
        assert_eq!(press(&mut state, "s"), None);
        assert_eq!(press(&mut state, "y"), service("dispatch", "stop"));
        assert_eq!(press(&mut state, "ry"), service("dispatch", "restart"));
        assert_eq!(press(&mut state, "js"), service("spool", "start"));
        assert_eq!(press(&mut state, "p"), service("spool", "start"));
        assert_eq!(press(&mut state, "c"), None, "a service is no file");
        // Links: west is open, north banned. A transfer's link is the same.
        assert_eq!(press(&mut state, "2p"), link("north", "open"));
        assert_eq!(press(&mut state, "Gp"), link("west", "drain"));
        assert_eq!(press(&mut state, "by"), link("west", "ban"));
        assert_eq!(press(&mut state, "3p"), link("west", "drain"));
        // Files: one waits, one is set apart.
        assert_eq!(press(&mut state, "4r"), file(41, "retry"));
        assert_eq!(press(&mut state, "jr"), file(42, "release"));
        assert_eq!(press(&mut state, "cy"), file(42, "cancel"));
        let both = Command::Again { retry: vec![41], release: vec![42], aside: vec![] };
        assert_eq!(press(&mut state, "Ry"), Some(both.clone()));
        assert_eq!(both.requests().len(), 2);
        assert_eq!(press(&mut state, "5rpsc"), None, "what happened, happened");
    }

    #[test]
    fn a_drained_link_is_banned_or_opened() {
        let mut state = example();
        let west = state.look.links.iter_mut().find(|link| link.site == "west").unwrap();
        west.wanted = LinkWanted::Drained;
        assert_eq!(press(&mut state, "2Gb"), None);
        assert_eq!(press(&mut state, "y"), link("west", "ban"));
        assert_eq!(press(&mut state, "p"), link("west", "open"));
        assert_eq!(press(&mut state, "gb"), link("north", "open"));
    }

    #[test]
    fn what_lies_in_a_spool_is_released_by_its_spool() {
        let mut state = example();
        state.look.waiting[1].is_aside = true;
        let release = press(&mut state, "4jr").unwrap().requests();
        let [(_, path, body)] = &release[..] else { panic!("one request") };
        assert_eq!((path.as_str(), body), ("/v1/spools/release", &json!({ "file": "42" })));
        let all = press(&mut state, "Ry").unwrap();
        assert!(all.words().contains("release 1 from quarantine"));
        let paths = all.requests().into_iter().map(|(_, path, _)| path);
        assert_eq!(paths.collect::<Vec<_>>(), ["/v1/files/retry", "/v1/spools/release"]);
        let cancel = press(&mut state, "cy").unwrap().requests();
        assert_eq!(cancel[0].1, "/v1/files/cancel");
    }

    #[test]
    fn all_are_stopped_and_started_by_one_key_that_is_asked_back() {
        let mut state = example();
        assert_eq!(press(&mut state, "S"), None);
        assert!(matches!(state.mode, Mode::Sure(_)));
        assert_eq!(press(&mut state, "n"), None);
        assert!(state.said.as_ref().is_some_and(|said| said.text.starts_with("not done")));
        assert_eq!(press(&mut state, "Sy"), service("all", "stop"));
        for service in &mut state.look.services {
            if service.name != "endpoint" {
                service.stage = crate::site::Stage::Stopped;
            }
        }
        assert_eq!(press(&mut state, "Sy"), service("all", "start"));
    }

    #[test]
    fn a_filter_is_written_kept_and_given_up() {
        let mut state = example();
        assert_eq!(press(&mut state, "4/bad q"), None, "q is a letter here");
        assert_eq!((state.filter.as_str(), state.waiting().len()), ("bad q", 0));
        press(&mut state, "\u{1b}/BAD\n");
        assert_eq!((state.waiting().len(), state.mode == Mode::Looking), (1, true));
        assert_eq!(press(&mut state, "r"), file(42, "release"), "the row that is shown");
        let only = Command::Again { retry: vec![], release: vec![42], aside: vec![] };
        assert_eq!(press(&mut state, "Ry"), Some(only), "what is not shown is not touched");
        press(&mut state, "\u{1b}");
        assert_eq!((state.waiting().len(), state.row()), (2, 1), "the cursor stays on it");
    }

    #[test]
    fn the_cursor_stays_where_rows_are() {
        let mut state = example();
        press(&mut state, "1kk");
        assert_eq!(state.row(), 0);
        press(&mut state, "jjjjjjjjjjjjjjjjjjjj");
        assert_eq!(state.row(), state.services().len() - 1);
        press(&mut state, "\t\t\t\t\t");
        assert_eq!(state.pane, Pane::Services);
        let mut empty = State::new("x");
        assert_eq!(press(&mut empty, "1jrRpsb4jrc"), None);
    }

    #[test]
    fn help_and_leaving() {
        let mut state = example();
        press(&mut state, "?");
        assert_eq!(state.mode, Mode::Help);
        assert_eq!(press(&mut state, "q"), None, "any key leaves the help");
        assert_eq!(press(&mut state, "q"), Some(Command::Quit));
        state.mode = Mode::Sure(Command::Service { name: "all".into(), verb: "stop" });
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(state.press(control_c), Some(Command::Quit));
    }

    #[test]
    fn commands_are_requests_of_the_api() {
        let command = Command::Again { retry: vec![1, 2], release: vec![], aside: vec![] };
        let [(words, path, body)] = &command.requests()[..] else { panic!("one request") };
        assert_eq!((words.as_str(), path.as_str()), ("retry 2 files", "/v1/files/retry"));
        assert_eq!(*body, json!({ "files": [1, 2] }));
        let command = Command::Link { site: "west".into(), verb: "drain" };
        let request = (command.words(), "/v1/links/west/drain".to_owned(), json!({}));
        assert_eq!(command.requests(), [request]);
        let command = Command::Service { name: "all".into(), verb: "stop" };
        assert_eq!(command.requests()[0].1, "/v1/services/all/stop");
    }

    #[test]
    fn a_cursor_stays_on_its_file_and_the_file_is_named() {
        let mut state = example();
        press(&mut state, "4j");
        let mut look = state.look.clone();
        look.waiting.remove(0);
        state.seen(look.clone());
        press(&mut state, "c");
        assert!(
            matches!(&state.mode, Mode::Sure(command) if command.words() == "cancel file 42, run17/bad.root")
        );
        assert_eq!(press(&mut state, "y"), file(42, "cancel"));
        look.waiting.insert(0, example().look.waiting[0].clone());
        look.services.remove(0);
        state.seen(look);
        assert_eq!(press(&mut state, "cy"), file(42, "cancel"));
        let name = "a/folder/of/some/depth/run17.root".to_owned();
        let words = Command::File { file: 7, name, verb: "retry", is_aside: false }.words();
        assert_eq!(words, "retry file 7, …of/some/depth/run17.root");
    }
}
