//! The page: a state drawn into a buffer of cells, and nothing else.
//!
//! From top to bottom: where we are and how fast; five parts, each with its head and as many rows as there is room for;
//! all about the row under the cursor; keys, question or answer. The part that keys work on gets room first. A wide terminal has
//! two columns of parts. What a colour says, a mark or a word says, too: `>` the cursor, `!` trouble, `~` passing, `-` off.
//!
//! Names come from anywhere. What would move the cursor or turn the text around is shown as `?`.

use super::keys::KEYS;
use super::state::{Contact, Flow, Mode, Pane, State, link_word};
use super::words::happened;
use crate::dispatch::{LinkReport, Why};
use crate::output::plain;
use crate::site::{ServiceReport, SiteEvent, Stage};
use crate::units::{show_bytes, show_duration, show_time};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table, Widget, Wrap};
use std::time::Duration;

/// From this width on there are two columns of parts.
const WIDE: u16 = 150;
/// Lines for all about one row.
const DETAIL_LINES: u16 = 2;
/// Lines for a question or an answer that is longer than one.
const FOOT_LINES: u16 = 3;
/// Rows that a part has before the others get more.
const ROWS_MIN: usize = 2;
/// Letters of a bar.
const BAR: usize = 10;
const YEAR_S: f64 = 31_536_000.0;
/// Columns of the mark, and of what a row is called.
const MARK: Constraint = Constraint::Length(2);
const NAME: Constraint = Constraint::Length(15);

/// A row of a part: its mark, its colour, its cells.
struct Shown {
    mark: char,
    style: Style,
    cells: Vec<Text<'static>>,
}

/// What a part looks like.
struct Form {
    title: &'static str,
    heads: &'static [&'static str],
    widths: &'static [Constraint],
}

const fn length(columns: u16) -> Constraint {
    Constraint::Length(columns)
}

const REST: Constraint = Constraint::Fill(1);

impl Pane {
    const fn form(self) -> Form {
        match self {
            Self::Services => Form {
                title: "SERVICES",
                heads: &["state", "since", "what it says"],
                widths: const { &[MARK, NAME, length(8), length(11), REST] },
            },
            Self::Links => Form {
                title: "LINKS",
                heads: &["state", "batches", "out", "in", "files", "trouble"],
                widths: const {
                    &[MARK, NAME, length(8), length(7), length(10), length(10), length(8), REST]
                },
            },
            Self::Transfers => Form {
                title: "TRANSFERS",
                heads: &["files", "done", "", "size", "rate", "ETA", "rule"],
                widths: const {
                    &[
                        MARK,
                        NAME,
                        length(6),
                        length(BAR as u16),
                        length(4),
                        length(9),
                        length(10),
                        length(10),
                        REST,
                    ]
                },
            },
            Self::Waiting => Form {
                title: "WAITING",
                heads: &["state", "next", "why"],
                widths: const {
                    &[MARK, Constraint::Fill(2), length(11), length(10), Constraint::Fill(3)]
                },
            },
            Self::Events => Form {
                title: "EVENTS",
                heads: &["kind", "what"],
                widths: const { &[MARK, NAME, length(8), REST] },
            },
        }
    }
}

/// Draws the page.
pub(super) fn draw(state: &State, area: Rect, out: &mut Buffer) {
    // An answer may say what to do at its end.
    let said = footline(state);
    let is_said = state.said.is_some() || state.mode != Mode::Looking;
    let is_long = is_said && said.width() > usize::from(area.width);
    let foot_lines = if is_long { FOOT_LINES } else { 1 };
    let heights = [length(1), Constraint::Min(0), length(DETAIL_LINES), length(foot_lines)];
    let [head, body, detail, foot] = Layout::vertical(heights).areas(area);
    headline(state).render(head, out);
    Paragraph::new(said).wrap(Wrap { trim: false }).render(foot, out);
    if state.mode == Mode::Help {
        return help(body, out);
    }
    if area.width >= WIDE {
        let [left, right] = Layout::horizontal([REST, REST]).spacing(2).areas(body);
        parts(state, &[Pane::Services, Pane::Links, Pane::Events], left, out);
        parts(state, &[Pane::Transfers, Pane::Waiting], right, out);
    } else {
        parts(state, &Pane::ALL, body, out);
    }
    Paragraph::new(about(state)).wrap(Wrap { trim: true }).render(detail, out);
}

/// The whole state as plain text, without keys and cursor.
pub fn text(state: &State, width: u16) -> String {
    let rows: usize = Pane::ALL.iter().map(|pane| 1 + state.count(*pane).0).sum();
    let height = u16::try_from(rows + 1).unwrap_or(u16::MAX);
    let mut out = Buffer::empty(Rect::new(0, 0, width, height));
    headline(state).render(Rect { height: 1, ..out.area }, &mut out);
    let body = Rect { y: 1, height: height - 1, ..out.area };
    let mut bare = state.clone();
    // No row of it is under a cursor.
    bare.rows = [usize::MAX; 5];
    parts(&bare, &Pane::ALL, body, &mut out);
    let mut text = String::new();
    for cells in out.content.chunks(usize::from(width)) {
        let (mut line, mut at) = (String::new(), 0);
        // A wide character takes the next cell, too.
        while let Some(cell) = cells.get(at) {
            line.push_str(cell.symbol());
            at += Span::raw(cell.symbol()).width().max(1);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn headline(state: &State) -> Line<'static> {
    let sum = |arrives: bool| {
        let flows = state.flows.iter().filter(|flow| flow.batch.arrives == arrives);
        flows.map(|flow| flow.rate).sum::<f64>()
    };
    let site = if state.look.site.is_empty() { "a site" } else { &state.look.site };
    let filter = match state.filter.as_str() {
        "" => String::new(),
        filter => format!("  only: {filter}"),
    };
    let at = format!("downpour top  {site} at {}{filter}", state.address);
    match &state.contact {
        Contact::Opening => Line::from(plain(&format!("{at}  no answer yet"))),
        Contact::Lost(why) => {
            let text = format!("{at}  NOT REACHED, tried again: {why}");
            Line::from(plain(&text)).style(Style::new().fg(Color::Red).bold())
        }
        Contact::Live => {
            let now = time_of_day(state.look.now_us);
            let (out, into) = (rate(sum(false)), rate(sum(true)));
            let text = format!("{at}  {now}  out {out}, in {into}");
            Line::from(plain(&text)).style(Style::new().bold())
        }
    }
}

fn footline(state: &State) -> Line<'static> {
    let asked = Style::new().reversed().bold();
    match (&state.mode, &state.said) {
        (Mode::Sure(command), _) => {
            let text = format!(" {}?  y: yes, any other key: no ", command.words());
            Line::from(plain(&text)).style(asked)
        }
        (Mode::Filtering, _) => {
            let text = format!(" only rows with: {}_  Enter: keep, Esc: all ", state.filter);
            Line::from(plain(&text)).style(asked)
        }
        (Mode::Help, _) => Line::from(" any key goes back "),
        (Mode::Looking, Some(said)) => {
            let style = if said.good { Style::new().bold() } else { Style::new().fg(Color::Red) };
            let mark = if said.good { ' ' } else { '!' };
            Line::from(plain(&format!("{mark}{}", said.text))).style(style)
        }
        (Mode::Looking, None) => {
            let keys = match state.pane {
                Pane::Services => "s stop/start  p drain  r restart",
                Pane::Links => "p drain/open  b ban/open",
                Pane::Transfers => "p drain/open its link  b ban/open",
                Pane::Waiting => "r try/release  c give up  R all",
                Pane::Events => "newest first",
            };
            let text = format!(" ? keys  q leave  / filter  Tab part  S all  {keys}");
            Line::from(text).style(Style::new().dim())
        }
    }
}

fn help(area: Rect, out: &mut Buffer) {
    let lines = KEYS.iter().map(|(key, what)| Line::from(format!(" {key:<32}{what}")));
    let lines: Vec<_> = std::iter::once(Line::default()).chain(lines).collect();
    Paragraph::new(lines).render(area, out);
}

/// Draws parts below each other.
fn parts(state: &State, panes: &[Pane], area: Rect, out: &mut Buffer) {
    let needs: Vec<usize> = panes.iter().map(|pane| state.count(*pane).0).collect();
    let first = panes.iter().position(|pane| *pane == state.pane);
    let heights = share(&needs, first, usize::from(area.height).saturating_sub(panes.len()));
    let mut y = area.y;
    for (pane, rows) in panes.iter().zip(heights) {
        let height = u16::try_from(rows + 1).unwrap_or(u16::MAX).min(area.bottom() - y);
        part(state, *pane, Rect { y, height, ..area }, out);
        y += height;
    }
}

/// How many rows each part gets of `room`: a few each, then `first`, then the others in turn.
fn share(needs: &[usize], first: Option<usize>, room: usize) -> Vec<usize> {
    let mut given = vec![0; needs.len()];
    let mut left = room;
    let mut give = |index: usize, most: usize, left: &mut usize| {
        let more = needs[index].min(most).saturating_sub(given[index]).min(*left);
        given[index] += more;
        *left -= more;
    };
    if let Some(first) = first {
        give(first, ROWS_MIN, &mut left);
    }
    (0..needs.len()).for_each(|index| give(index, ROWS_MIN, &mut left));
    if let Some(first) = first {
        give(first, usize::MAX, &mut left);
    }
    let most = needs.iter().copied().max().unwrap_or(0);
    for rows in ROWS_MIN..=most {
        (0..needs.len()).for_each(|index| give(index, rows, &mut left));
    }
    given
}

fn part(state: &State, pane: Pane, area: Rect, out: &mut Buffer) {
    let form = pane.form();
    let (shown, all) = state.count(pane);
    let more = if pane == Pane::Waiting && state.look.more_wait { "+" } else { "" };
    let count = if shown == all { format!("{all}{more}") } else { format!("{shown}/{all}{more}") };
    let title = format!("{} {} {count}", pane.index() + 1, form.title);
    let is_first = state.pane == pane;
    let heads =
        [String::new(), title].into_iter().chain(form.heads.iter().map(|s| (*s).to_owned()));
    let style =
        if is_first { Style::new().bold().reversed() } else { Style::new().bold().underlined() };
    let head = Row::new(heads.map(Cell::from)).style(style);
    let cursor = state.rows[pane.index()];
    let height = usize::from(area.height).saturating_sub(1);
    let skipped = if cursor < shown { (cursor + 1).saturating_sub(height) } else { 0 };
    let rows = rows_of(state, pane).into_iter().enumerate().skip(skipped).take(height);
    let rows = rows.map(|(index, shown)| {
        let is_under = is_first && index == cursor;
        let mark = format!("{}{}", if is_under { '>' } else { ' ' }, shown.mark);
        let cells = std::iter::once(Text::from(mark)).chain(shown.cells);
        let style = if is_under { shown.style.reversed() } else { shown.style };
        Row::new(cells.map(Cell::from)).style(style)
    });
    let rows: Vec<_> = rows.collect();
    Table::new(rows, form.widths).header(head).column_spacing(1).render(area, out);
}

fn rows_of(state: &State, pane: Pane) -> Vec<Shown> {
    match pane {
        Pane::Services => state.services().into_iter().map(service).collect(),
        Pane::Links => state.links().into_iter().map(|one| link(state, one)).collect(),
        Pane::Transfers => state.transfers().into_iter().map(transfer).collect(),
        Pane::Waiting => {
            state.waiting().into_iter().map(|why| waiting(why, state.look.now_us)).collect()
        }
        Pane::Events => state.happened().into_iter().map(event).collect(),
    }
}

/// A mark and its colour.
fn shown(mark: char, cells: Vec<Text<'static>>) -> Shown {
    let style = match mark {
        '!' => Style::new().fg(Color::Red),
        '~' => Style::new().fg(Color::Yellow),
        '-' => Style::new().dim(),
        _ => Style::new(),
    };
    Shown { mark, style, cells }
}

fn service(service: &ServiceReport) -> Shown {
    let mark = match service.stage {
        Stage::Running => ' ',
        Stage::Draining | Stage::Stopping => '~',
        Stage::Stopped => '-',
        Stage::Failed => '!',
    };
    let line = match (&service.why, service.stage) {
        (Some(why), Stage::Failed) => format!("{} ({})", why.what, why.class),
        _ => service.status.line.clone(),
    };
    let since = seconds(service.since_s);
    let cells = vec![left(&service.name), left(service.stage.name()), left(&since), left(&line)];
    shown(mark, cells)
}

fn link(state: &State, link: &LinkReport) -> Shown {
    let word = link_word(link);
    let mark = match word {
        "BROKEN" => '!',
        "drained" | "held" => '~',
        "banned" => '-',
        _ => ' ',
    };
    let sum = |arrives: bool| {
        let flows = state.flows.iter().filter(|flow| flow.batch.site == link.site);
        rate(flows.filter(|flow| flow.batch.arrives == arrives).map(|flow| flow.rate).sum())
    };
    let trouble = trouble(link, state.look.now_us);
    let cells = vec![
        left(&link.site),
        left(word),
        right(&format!("{}/{}", link.active, link.active_max)),
        right(&sum(false)),
        right(&sum(true)),
        right(&link.files.to_string()),
        left(&trouble),
    ];
    shown(mark, cells)
}

fn trouble(link: &LinkReport, now_us: i64) -> String {
    let trouble = link.standstill.as_ref().or(link.trouble.as_ref());
    let trouble = trouble.cloned().unwrap_or_default();
    match link.probe_at_us {
        Some(at) => format!("probe {}: {trouble}", when(Some(at), now_us)),
        None => trouble,
    }
}

fn transfer(flow: &Flow) -> Shown {
    let batch = &flow.batch;
    let share = batch.arrived as f64 / batch.bytes.max(1) as f64;
    let share = if batch.bytes == 0 { 0.0 } else { share.clamp(0.0, 1.0) };
    let filled = (share * BAR as f64) as usize;
    let bar = format!("{}{}", "#".repeat(filled), ".".repeat(BAR - filled));
    let way = if batch.arrives { "<-" } else { "->" };
    let cells = vec![
        left(&format!("{way} {}", batch.site)),
        right(&batch.files.to_string()),
        left(&bar),
        right(&format!("{:.0}%", (share * 100.0).floor())),
        right(&show_bytes(batch.bytes)),
        right(&rate(flow.rate)),
        right(&flow.eta_s().map_or("unknown".to_owned(), seconds)),
        left(&batch.rule),
    ];
    shown(if batch.failed > 0 { '!' } else { ' ' }, cells)
}

fn waiting(why: &Why, now_us: i64) -> Shown {
    let mark = match why.state.as_str() {
        "quarantined" => '!',
        "waiting" => '~',
        _ => ' ',
    };
    let next = when(why.eta_us, now_us);
    let next = if mark == '!' { "by hand" } else { next.trim_start_matches("in ") };
    let cells = vec![left(&why.name), left(&why.state), left(next), left(&why.text)];
    shown(mark, cells)
}

fn event(event: &SiteEvent) -> Shown {
    let says = |key: &str| event.about.get(key) == Some(&true.into());
    let is_bad = match event.kind.as_str() {
        SiteEvent::TROUBLE | SiteEvent::QUARANTINE | SiteEvent::MISSED => true,
        // What an operator did to a broken one is not trouble once more.
        SiteEvent::LINK => says("is_broken") && event.about["wanted"] == "open",
        SiteEvent::MIRROR => says("alarm"),
        _ => false,
    };
    let mark = if is_bad { '!' } else { ' ' };
    shown(mark, vec![left(&time_of_day(event.at_us)), left(&event.kind), left(&happened(event))])
}

/// All about the row under the cursor.
fn about(state: &State) -> String {
    let (row, now) = (state.row(), state.look.now_us);
    let text = match state.pane {
        Pane::Services => state.services().get(row).map(|service| {
            let mut text = format!("service {}: {}", service.name, service.status.line);
            if let Some(why) = &service.why {
                let (n, what, class) = (service.failures, &why.what, &why.class);
                text.push_str(&format!("; failed {n} times, last: {what} ({class})"));
            }
            if let Some(next) = service.next_try_s {
                text.push_str(&format!("; next try in {}", seconds(next)));
            }
            text
        }),
        Pane::Links => state.links().get(row).map(|link| {
            format!(
                "link to {}: {} files, {} since the start; lately {:.1} files/s, {}. {}",
                link.site,
                link.files,
                show_bytes(link.bytes),
                link.files_per_s,
                rate(link.bytes_per_s),
                trouble(link, now)
            )
        }),
        Pane::Transfers => state.transfers().get(row).map(|Flow { batch, .. }| {
            format!(
                "batch {} {} {}: {} of {}, {} files, {} failed, since {}",
                batch.id,
                if batch.arrives { "from" } else { "to" },
                batch.site,
                show_bytes(batch.arrived),
                show_bytes(batch.bytes),
                batch.files,
                batch.failed,
                time_of_day(batch.since_us)
            )
        }),
        Pane::Waiting => state.waiting().get(row).map(|why| {
            let class = why.class.as_deref().map_or(String::new(), |class| format!(", {class}"));
            format!(
                "file {} {} version {}: {}{class}, {} attempts, since {}: {}",
                why.file,
                why.name,
                why.version,
                why.state,
                why.tries,
                show_time(why.since_us),
                why.text
            )
        }),
        Pane::Events => state.happened().get(row).map(|event| {
            format!("event {} at {}: {}", event.number, show_time(event.at_us), event.about)
        }),
    };
    plain(&text.unwrap_or_default())
}

fn left(text: &str) -> Text<'static> {
    Text::from(plain(text))
}

fn right(text: &str) -> Text<'static> {
    left(text).right_aligned()
}

fn rate(bytes_per_s: f64) -> String {
    format!("{}/s", show_bytes(bytes_per_s as u64))
}

fn seconds(seconds: f64) -> String {
    // Nobody waits for longer.
    let bounded = seconds.clamp(0.0, YEAR_S);
    if bounded < 60.0 {
        return format!("{bounded:.0} s");
    }
    show_duration(Duration::from_secs_f64(bounded))
}

fn when(at_us: Option<i64>, now_us: i64) -> String {
    match at_us {
        None => "unknown".to_owned(),
        Some(at) if at <= now_us => "now".to_owned(),
        Some(at) => format!("in {}", seconds((at - now_us) as f64 / 1e6)),
    }
}

/// `08:14:01Z`.
fn time_of_day(micros: i64) -> String {
    show_time(micros).split_once('T').map_or(String::new(), |(_, time)| time.to_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use super::{draw, plain, share, text};
    use crate::dispatch::{BatchReport, LinkReport, LinkWanted, Why};
    use crate::site::{ServiceReport, SiteEvent, Stage, Status};
    use crate::top::{Command, Look, Mode, Pane, Said, State};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::text::Span;
    use serde_json::{Value, json};

    /// 2026-11-22T08:14:01Z.
    const NOW: i64 = 1_795_335_241_000_000;

    fn service(name: &str, stage: Stage, line: &str) -> ServiceReport {
        ServiceReport {
            name: name.to_owned(),
            stage,
            since_s: 184.2,
            failures: u64::from(stage == Stage::Failed),
            why: (stage == Stage::Failed).then(|| crate::site::Why {
                class: "catalog-unreachable".to_owned(),
                what: "the database is gone".to_owned(),
            }),
            failed_s: None,
            next_try_s: (stage == Stage::Failed).then_some(4.0),
            status: Status::line(line),
        }
    }

    fn link(site: &str, wanted: LinkWanted, broken: bool) -> LinkReport {
        LinkReport {
            site: site.to_owned(),
            wanted,
            active: usize::from(!broken),
            active_max: 4,
            files: 1234,
            bytes: 5_600_000_000,
            files_per_s: 12.3,
            bytes_per_s: 4_500_000.0,
            standstill: None,
            probe_at_us: broken.then_some(NOW + 5_000_000),
            is_broken: broken,
            trouble: broken.then(|| "destination-unreachable: connection refused".to_owned()),
        }
    }

    fn batch(id: &str, site: &str, arrives: bool, arrived: u64) -> BatchReport {
        BatchReport {
            id: id.to_owned(),
            site: site.to_owned(),
            arrives,
            rule: if arrives { String::new() } else { "raw".to_owned() },
            files: 100,
            bytes: 200_000_000,
            arrived,
            failed: u64::from(arrives),
            since_us: NOW - 10_000_000,
            stands_s: None,
        }
    }

    fn why(file: i64, name: &str, state: &str, text: &str) -> Why {
        Why {
            fetch: None,
            file,
            name: name.to_owned(),
            version: 1,
            state: state.to_owned(),
            reason: Some("back-off".to_owned()),
            class: Some("destination-full".to_owned()),
            tries: 3,
            since_us: NOW - 100_000_000,
            eta_us: (state == "waiting").then_some(NOW + 72_000_000),
            text: text.to_owned(),
            is_aside: false,
            ways: Vec::new(),
            sources: Vec::new(),
        }
    }

    fn event(number: u64, kind: &str, about: Value) -> SiteEvent {
        SiteEvent { number, at_us: NOW - 1_000_000, kind: kind.to_owned(), about }
    }

    /// A site with something of everything.
    pub(in crate::top) fn example() -> State {
        let mut state = State::new("127.0.0.1:28790");
        state.seen(Look {
            site: "east".to_owned(),
            now_us: NOW,
            services: vec![
                service("dispatch", Stage::Running, "2 batches out, 1 in, 1 links broken"),
                service("spool", Stage::Stopped, "12 files in 1 folder"),
                service("reconcile", Stage::Failed, "never"),
                service("scrub", Stage::Draining, "1000 files, 12.0 GB: 0 wrong"),
                service("endpoint", Stage::Running, "127.0.0.1:28790, 3 connections"),
            ],
            links: vec![
                link("north", LinkWanted::Banned, false),
                link("south", LinkWanted::Open, true),
                link("west", LinkWanted::Open, false),
            ],
            batches: vec![
                batch("b1", "west", false, 50_000_000),
                batch("b2", "north", true, 150_000_000),
            ],
            waiting: vec![
                why(41, "run17/a.root", "waiting", "the destination has no room"),
                why(
                    42,
                    "run17/bad.root",
                    "quarantined",
                    "set apart for digest-differs, which is the file's own",
                ),
            ],
            more_wait: true,
        });
        state.heard(event(1, "service", json!({ "name": "spool", "stage": "stopped" })));
        let trouble =
            json!({ "name": "run17/a.root", "class": "destination-full", "what": "no room" });
        state.heard(event(2, "trouble", trouble));
        let deed =
            json!({ "who": "shift", "what": "POST /v1/services/spool/stop", "result": "200" });
        state.heard(event(3, "audit", deed));
        state.heard(event(0, "missed", json!({ "events": 7 })));
        state
    }

    fn drawn(state: &State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(state, frame.area(), frame.buffer_mut())).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_small_terminal_shows_something_of_everything() {
        insta::assert_snapshot!(drawn(&example(), 80, 24));
    }

    #[test]
    fn a_wide_terminal_has_two_columns() {
        let mut state = example();
        state.pane = Pane::Waiting;
        state.rows[Pane::Waiting.index()] = 1;
        insta::assert_snapshot!(drawn(&state, 160, 30));
    }

    #[test]
    fn a_daemon_that_is_gone_is_told_and_what_it_said_stays() {
        let mut state = example();
        state.pane = Pane::Links;
        state.rows[Pane::Links.index()] = 1;
        state.lost("127.0.0.1:28790: Connection refused (os error 111)");
        insta::assert_snapshot!(drawn(&state, 100, 26));
    }

    #[test]
    fn a_grave_command_is_asked_back() {
        let mut state = example();
        state.mode = Mode::Sure(Command::Service { name: "all".to_owned(), verb: "stop" });
        let page = drawn(&state, 80, 24);
        assert!(page.contains("stop all services?  y: yes, any other key: no"), "{page}");
        state.mode = Mode::Filtering;
        state.filter = "run17".to_owned();
        let page = drawn(&state, 80, 24);
        assert!(page.contains("only rows with: run17_") && page.contains("SERVICES 0/5"), "{page}");
        assert!(page.contains("only: run17"), "{page}");
    }

    #[test]
    fn the_help_names_every_key() {
        let mut state = example();
        state.mode = Mode::Help;
        insta::assert_snapshot!(drawn(&state, 80, 24));
    }

    #[test]
    fn as_text_nothing_is_left_out() {
        insta::assert_snapshot!(text(&example(), 120));
    }

    #[test]
    fn a_link_whose_site_takes_nothing_for_now_is_not_broken() {
        let mut state = example();
        state.look.links[1].is_broken = false;
        let page = text(&state, 120);
        let south = page.lines().find(|line| line.contains("south")).expect("a link");
        assert!(south.contains("~ south") && south.contains(" held "), "{page}");
        assert!(!page.contains("BROKEN"), "{page}");
    }

    #[test]
    fn a_page_fits_any_terminal() {
        let mut state = example();
        for pane in Pane::ALL {
            state.pane = pane;
            for (width, height) in [(1, 1), (20, 3), (80, 6), (80, 24), (150, 9), (500, 100)] {
                let page = drawn(&state, width, height);
                assert_eq!(page.lines().count(), usize::from(height));
            }
        }
    }

    #[test]
    fn the_row_under_the_cursor_is_on_the_page() {
        let mut state = example();
        let row = |n: i64| why(n, &format!("file {n}"), "waiting", "it is tried again");
        state.look.waiting = (0..500).map(row).collect();
        state.pane = Pane::Waiting;
        state.rows[Pane::Waiting.index()] = 321;
        let page = drawn(&state, 80, 24);
        let under = page.lines().find(|line| line.contains(">~")).expect("a cursor");
        assert!(under.contains("file 321"), "{page}");
        assert!(
            ["SERVICES", "LINKS", "TRANSFERS", "EVENTS"].iter().all(|part| page.contains(part))
        );
    }

    #[test]
    fn names_of_others_cannot_speak_to_the_terminal() {
        let mut state = example();
        state.look.waiting[0].name = "a\u{1b}[2Jb\u{202e}c\nd".to_owned();
        state.pane = Pane::Waiting;
        let shown = text(&state, 120) + &drawn(&state, 80, 24);
        assert!(shown.contains("a?[2Jb?c?d"), "{shown}");
        assert!(!shown.contains(['\u{1b}', '\u{202e}']));
        assert_eq!(plain("äß 漢字 a\tb"), "äß 漢字 a?b");
    }

    #[test]
    fn wide_letters_are_text_as_they_are() {
        let mut state = example();
        state.look.waiting[0].name = "wide漢字漢字".to_owned();
        let page = text(&state, 120);
        let rows: Vec<&str> =
            page.lines().filter(|line| line.contains("run") || line.contains("wide")).collect();
        let wide = rows.iter().find(|row| row.contains("wide漢字漢字")).expect("its name");
        let plain = rows.iter().find(|row| row.contains("bad.root")).expect("the other");
        let at = |row: &str, word: &str| Span::raw(row.split(word).next().unwrap()).width();
        assert_eq!(at(wide, "waiting"), at(plain, "quarantined"), "{page}");
    }

    #[test]
    fn what_is_to_be_done_is_not_cut_off() {
        let mut state = example();
        let text = format!("not done: {}: do-this", "because ".repeat(15));
        state.said = Some(Said { good: false, text });
        assert!(drawn(&state, 80, 24).contains("do-this"));
    }

    #[test]
    fn while_dispatch_is_stopped_links_say_so() {
        let mut state = example();
        let stopped = "the service dispatch is stopped: downpour service start dispatch";
        for link in &mut state.look.links {
            (link.probe_at_us, link.standstill) = (None, Some(stopped.to_owned()));
        }
        let page = text(&state, 160);
        assert_eq!(page.matches(stopped).count(), 3, "{page}");
        assert!(page.contains("BROKEN") && !page.contains("probe"), "{page}");
    }

    #[test]
    fn what_an_operator_did_to_a_broken_link_is_told_as_that() {
        for (wanted, is_broken, words) in [
            ("open", true, "b is broken: nobody answers"),
            ("banned", true, "b is banned (broken: nobody answers)"),
            ("drained", false, "b is drained and not broken"),
            ("open", false, "b is open and not broken"),
        ] {
            let what = is_broken.then_some("nobody answers");
            let about =
                json!({ "site": "b", "is_broken": is_broken, "wanted": wanted, "what": what });
            let mut state = State::new("127.0.0.1:28790");
            state.heard(event(1, "link", about));
            let page = text(&state, 120);
            let line = page.lines().find(|line| line.contains(" link ")).unwrap();
            assert!(line.trim_end().ends_with(&format!("  {words}")), "{page}");
            assert_eq!(line.contains('!'), is_broken && wanted == "open", "{page}");
        }
    }

    #[test]
    fn room_goes_to_the_part_in_hand_first() {
        assert_eq!(share(&[9, 9, 9], Some(1), 12), [2, 8, 2]);
        assert_eq!(share(&[9, 0, 1], Some(0), 12), [9, 0, 1]);
        assert_eq!(share(&[9, 9, 1], None, 12), [6, 5, 1]);
        assert_eq!(share(&[9, 9, 9], Some(2), 3), [1, 0, 2]);
        assert_eq!(share(&[5, 5], Some(0), 0), [0, 0]);
    }
}
