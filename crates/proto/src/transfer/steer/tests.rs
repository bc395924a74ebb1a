//! Links that follow a formula, in steps of half a second. Real windows and queues: `downpour-sim`.

use super::{Beside, Binding, Decision, Limits, LinkId, Memory, Seen, Setting, Steer, TURN_TIME};
use crate::time::{Duration, Timestamp};
use crate::units::Rate;
use alloc::vec::Vec;

const STEP: Duration = Duration::from_millis(500);
const LIMITS: Limits = Limits { first: 8, least: 1, most: 64, ceiling: None };
const MB: f64 = 1e6;

/// What `connections` see in a step when they bring `rate` bytes a second.
fn seen(setting: Setting, rate: f64, loss: f64) -> Seen {
    let bytes = (rate * STEP.as_secs_f64()) as u64;
    Seen {
        span: STEP,
        bytes,
        connections: setting.connections,
        sent: bytes,
        again: (bytes as f64 * loss) as u64,
        rtt: Duration::from_millis(50),
        rtt_min: Duration::from_millis(50),
        busy: STEP * u32::from(setting.connections),
        ..Seen::default()
    }
}

/// Runs one link for so many seconds; what it is told follows from the setting and the second.
fn run(
    limits: Limits,
    memory: Option<&Memory>,
    seconds: u64,
    tells: impl Fn(Setting, u64) -> Seen,
) -> (Steer, LinkId, Vec<Decision>) {
    let mut steer = Steer::default();
    let (link, mut setting) = steer.begin(limits, memory).unwrap();
    let (mut now, mut decisions) = (Timestamp::ZERO, Vec::new());
    for step in 0..2 * seconds {
        now = now + STEP;
        if let Some(decision) = steer.look(now, link, &tells(setting, step / 2)) {
            setting = decision.setting;
            decisions.push(decision);
        }
    }
    (steer, link, decisions)
}

#[test]
fn losses_are_met_with_more_connections_until_the_path_is_full() {
    let (steer, link, decisions) = run(LIMITS, None, 60, |setting, _| {
        let own = f64::from(setting.connections) * 0.5 * MB;
        seen(setting, own.min(12.0 * MB), if own < 12.0 * MB { 0.001 } else { 0.004 })
    });
    let memory = steer.memory(link).unwrap();
    assert!((24..=32).contains(&memory.connections), "{decisions:#?}");
    assert_eq!(memory.binding, Binding::Saturation);
    assert!(decisions[0].why.contains("losses keep the windows small: trying twice as many"));
}

/// Twelve megabytes a second, that each of two connections could bring half of.
fn full(setting: Setting, loss: f64) -> Seen {
    let own = f64::from(setting.connections) * 6.0 * MB;
    let rtt = Duration::from_millis(if own > 12.0 * MB { 80 } else { 51 });
    Seen { rtt, ..seen(setting, own.min(12.0 * MB), if own > 12.0 * MB { loss } else { 0.0 }) }
}

#[test]
fn a_full_path_that_loses_little_is_left_as_it_was_planned() {
    let (steer, link, decisions) = run(LIMITS, None, 60, |setting, second| {
        // What is lost at first, while the windows open, is no reason for a trial.
        full(setting, if second < 3 { 0.02 } else { 0.0 })
    });
    assert_eq!(steer.setting(link).unwrap().connections, 8, "{decisions:#?}");
    assert!(decisions.iter().all(|d| d.setting.connections == 8), "{decisions:#?}");
    assert_eq!(steer.memory(link).unwrap().binding, Binding::Saturation);
}

#[test]
fn a_full_path_that_loses_much_keeps_as_few_connections_as_fill_it() {
    let (steer, link, decisions) = run(LIMITS, None, 60, |setting, _| full(setting, 0.02));
    assert_eq!(steer.memory(link).unwrap().connections, 2, "{decisions:#?}");
}

#[test]
fn a_path_that_its_queue_shows_to_be_full_is_tried_with_more_once_it_has_rested() {
    // The round trip varies by itself.
    let (_, _, decisions) = run(LIMITS, None, 120, |setting, _| {
        let own = f64::from(setting.connections) * 0.5 * MB;
        Seen { rtt: Duration::from_millis(70), ..seen(setting, own, 0.0) }
    });
    let more = decisions.iter().position(|d| d.setting.connections > 8).expect("it was tried");
    assert!(more > 0 && decisions[more..].iter().all(|d| d.setting.connections >= 16));
}

#[test]
fn connections_end_a_few_at_a_time_and_begin_at_once() {
    let of = |connections| Setting { connections, pacing: None };
    let (mut now, mut steps) = (of(32), Vec::new());
    while now != of(8) {
        now = now.step(of(8));
        steps.push(now.connections);
    }
    assert_eq!(steps[..3], [28, 25, 22]);
    assert!(steps.len() > 8);
    assert_eq!((of(8).step(of(16)), of(1).step(of(1))), (of(16), of(1)));
}

#[test]
fn a_disk_that_binds_changes_nothing_and_is_named() {
    let (steer, link, decisions) = run(LIMITS, None, 300, |setting, second| {
        let rate = if second < 20 { 20.0 } else { 1.0 } * MB;
        let wait = if second < 20 { Duration::ZERO } else { STEP * u32::from(setting.connections) };
        let rtt = Duration::from_millis(70);
        Seen { rtt, source_wait: wait, idle: wait, ..seen(setting, rate, 0.0) }
    });
    let settled = steer.memory(link).unwrap();
    // What is remembered is the link, not the disk.
    assert!(settled.rate > Rate::from_mbps(120), "{settled}");
    let last = decisions.last().unwrap();
    assert_eq!(last.binding, Binding::SourceDisk, "{decisions:#?}");
    let since = decisions.iter().filter(|d| d.binding == Binding::SourceDisk).count();
    assert_eq!(since, 1, "{decisions:#?}");
}

#[test]
fn what_is_remembered_is_where_the_next_transfer_begins() {
    let path = |setting: Setting, _| {
        let own = f64::from(setting.connections) * 0.5 * MB;
        seen(setting, own.min(16.0 * MB), 0.001)
    };
    let (mut steer, link, _) = run(LIMITS, None, 60, path);
    let memory = steer.end(link).unwrap();
    assert_eq!(memory.connections, 32);
    let (steer, link, decisions) = run(LIMITS, Some(&memory), 50, path);
    assert_eq!(steer.setting(link).unwrap().connections, 32);
    assert!(decisions.iter().all(|d| d.setting.connections == 32), "{decisions:#?}");
}

#[test]
fn a_search_that_was_cut_off_goes_on_with_the_next_transfer() {
    let path = |setting: Setting| {
        let own = f64::from(setting.connections) * 0.5 * MB;
        seen(setting, own.min(16.0 * MB), 0.001)
    };
    let mut memory: Option<Memory> = None;
    let mut settings = Vec::new();
    // Each takes two and a half seconds. As in `transport`, what is remembered is written down with each decision.
    for _ in 0..8 {
        let mut steer = Steer::default();
        let (link, mut setting) = steer.begin(LIMITS, memory.as_ref()).unwrap();
        for step in 1..=5 {
            if let Some(decision) = steer.look(Timestamp::ZERO + STEP * step, link, &path(setting))
            {
                setting = decision.setting;
                memory = steer.memory(link);
            }
        }
        settings.push((memory.unwrap().connections, memory.unwrap().ended, setting.connections));
    }
    assert_eq!(settings[0], (16, false, 32));
    // More than 32 were tried once, in vain.
    assert_eq!(settings[7], (32, true, 32), "{settings:?}");
}

#[test]
fn what_was_asked_for_by_hand_is_not_remembered() {
    let path = |setting: Setting, _| {
        let own = f64::from(setting.connections) * 0.5 * MB;
        let most = setting.pacing.map_or(16.0 * MB, |pacing| pacing.bps() as f64 / 8.0);
        seen(setting, own.min(most).min(16.0 * MB), 0.001)
    };
    // It holds nothing.
    let ceiling = Some(Rate::from_mbps(200));
    let (mut steer, link, _) = run(Limits { ceiling, ..LIMITS }, None, 20, path);
    assert_eq!(steer.setting(link).unwrap().pacing, ceiling);
    let memory = steer.end(link).unwrap();
    assert_eq!((memory.connections, memory.pacing), (32, None));
    let (_, setting) = steer.begin(LIMITS, Some(&memory)).unwrap();
    assert_eq!(setting.pacing, None);
    // As in `transport`, what is remembered is written over with each decision.
    let held = Limits { ceiling: Some(Rate::from_mbps(20)), ..LIMITS };
    let (mut steer, mut now, mut remembered) = (Steer::default(), Timestamp::ZERO, memory);
    let (link, mut setting) = steer.begin(held, Some(&memory)).unwrap();
    for step in 0..240 {
        now = now + STEP;
        if let Some(decision) = steer.look(now, link, &path(setting, step)) {
            setting = decision.setting;
            remembered = steer.memory(link).unwrap_or(remembered);
        }
    }
    assert_ne!(setting.connections, 32, "the ceiling needs fewer");
    assert_eq!(steer.end(link), None);
    let (steer, link, _) = run(LIMITS, Some(&remembered), 20, path);
    assert_eq!(steer.setting(link).unwrap().connections, 32, "{remembered}");
    let fixed = Limits { first: 1, least: 1, most: 1, ceiling: None };
    let (mut steer, link, _) = run(fixed, None, 20, path);
    assert_eq!(steer.end(link), None);
}

#[test]
fn a_number_that_was_asked_for_is_left_alone_but_what_binds_is_told() {
    let fixed = Limits { first: 5, least: 5, most: 5, ceiling: Some(Rate::from_mbps(50)) };
    let (steer, link, decisions) =
        run(fixed, None, 120, |setting, _| seen(setting, 2.0 * MB, 0.01));
    let setting = Setting { connections: 5, pacing: Some(Rate::from_mbps(50)) };
    assert_eq!(steer.setting(link), Some(setting));
    assert_eq!(decisions.len(), 1, "{decisions:#?}");
    assert_eq!(decisions[0].binding, Binding::Loss);
}

/// 12 MB/s at most, of which the start's short measurements see more: what had waited behind losses.
fn nearly_full(setting: Setting, step: u64) -> Seen {
    let (rate, queue) = match step {
        // More at first than the path takes; then what the path takes, and a little less while no queue stands.
        0..2 => (14.0, 20),
        step if step % 16 < 8 => (12.0, 10),
        _ => (11.7, 0),
    };
    let rtt = Duration::from_millis(50 + queue);
    Seen { rtt, ..seen(setting, rate * MB, 0.01) }
}

#[test]
fn what_comes_at_the_start_is_not_taken_for_what_the_path_takes() {
    let fixed = Limits { first: 8, least: 8, most: 8, ceiling: None };
    let mut steer = Steer::default();
    let (link, setting) = steer.begin(fixed, None).unwrap();
    let (mut now, mut verdicts) = (Timestamp::ZERO, Vec::new());
    for step in 0..200 {
        now = now + STEP;
        let decision = steer.look(now, link, &nearly_full(setting, step));
        verdicts.extend(decision.map(|decision| decision.binding));
    }
    assert_eq!(verdicts, [Binding::Saturation]);
}

#[test]
fn what_binds_fewer_connections_that_were_taken_back_is_not_told_of_those_that_stay() {
    // Eight fill the path and lose much; four do not.
    let (_, _, decisions) = run(LIMITS, None, 40, |setting, _| {
        let own = f64::from(setting.connections) * 1.5 * MB;
        let rtt = Duration::from_millis(if own < 12.0 * MB { 50 } else { 80 });
        Seen { rtt, ..seen(setting, own.min(12.0 * MB), 0.01) }
    });
    assert!(decisions.iter().any(|d| d.setting.connections == 4), "{decisions:#?}");
    let back = decisions.iter().find(|d| d.why.ends_with("taken back")).expect("four were too few");
    assert_eq!(back.binding, Binding::Saturation, "{back:?}");
}

#[test]
fn a_trial_in_which_another_transfer_of_the_sender_ends_is_void() {
    let mut steer = Steer::default();
    let (link, mut setting) = steer.begin(LIMITS, None).unwrap();
    let (mut now, mut void) = (Timestamp::ZERO, None);
    let mut beside = Beside { others: 2, turn: true, ..Beside::default() };
    while void.is_none() && now < Timestamp::ZERO + Duration::from_secs(20) {
        now = now + STEP;
        beside.bytes += 1_000_000;
        // One ends while twice as many connections are tried, and leaves room.
        beside.changes = u64::from(setting.connections > 8);
        let rate = if setting.connections > 8 { 9.0 } else { 4.0 } * MB;
        steer.told(link, Some(beside));
        if let Some(decision) = steer.look(now, link, &seen(setting, rate, 0.001)) {
            setting = decision.setting;
            void = decision.why.contains("began or ended").then_some(decision);
        }
    }
    assert_eq!(void.expect("it is told").setting.connections, 8);
}

/// The disk of one link's sender hangs while twice as many connections are tried there.
#[test]
fn a_link_that_falls_idle_in_a_trial_does_not_keep_the_others_from_theirs() {
    let mut steer = Steer::default();
    let [idle, other] = [(); 2].map(|()| steer.begin(LIMITS, None).unwrap().0);
    let mut now = Timestamp::ZERO;
    // Each connection brings half a megabyte a second, on a path of its own.
    let look = |steer: &mut Steer, now, link| {
        let setting = steer.setting(link).unwrap();
        let rate = f64::from(setting.connections) * 0.5 * MB;
        steer.look(now, link, &seen(setting, rate, 0.001))
    };
    while steer.setting(idle).unwrap().connections == 8 {
        now = now + STEP;
        look(&mut steer, now, idle);
    }
    let fell_idle = now;
    while steer.setting(other).unwrap().connections == 8 {
        now = now + STEP;
        assert!(now < fell_idle + Duration::from_secs(20), "it waits for the idle one");
        look(&mut steer, now, other);
    }
    assert!(now >= fell_idle + TURN_TIME, "that is soon heard of again, as far as is known");
    let back = look(&mut steer, now + STEP, idle).expect("its trial ends");
    assert_eq!(back.setting.connections, 8, "{back:?}");
    assert!(back.why.ends_with("taken back"), "{back:?}");
}

#[test]
fn who_is_beside_transfers_that_come_and_go_all_the_time_still_tries() {
    let mut steer = Steer::default();
    let (link, mut setting) = steer.begin(LIMITS, None).unwrap();
    let mut beside = Beside { others: 2, turn: true, ..Beside::default() };
    for look in 1..=60 {
        beside = Beside { bytes: beside.bytes + 1_000_000, changes: look, ..beside };
        let rate = if setting.connections > 8 { 9.0 } else { 4.0 } * MB;
        steer.told(link, Some(beside));
        let now = Timestamp::ZERO + STEP * look as u32;
        if let Some(decision) = steer.look(now, link, &seen(setting, rate, 0.001)) {
            setting = decision.setting;
        }
    }
    assert!(setting.connections > 8, "{setting:?}");
}

// docs/protocol.md#WAN-9
#[test]
fn whatever_a_sender_tells_of_others_a_link_goes_on() {
    const MOST: Beside =
        Beside { others: u32::MAX, bytes: u64::MAX, changes: u64::MAX, turn: true };
    type Tells = fn(u64) -> Option<Beside>;
    // What the n-th look is told, and whether anything is tried then.
    let tells: [(Tells, bool); 9] = [
        (|_| None, true),
        (|_| Some(MOST), true),
        (|n| Some(Beside { bytes: u64::MAX - (n << 20), ..MOST }), true),
        (|n| Some(Beside { changes: u64::MAX - n, ..MOST }), true),
        (|n| Some(Beside { bytes: n % 2 * u64::MAX, ..MOST }), true),
        (|n| Some(MOST).filter(|_| n % 2 == 0), true),
        (|_| Some(Beside { others: 0, turn: false, ..MOST }), true),
        (|_| Some(Beside { turn: false, ..MOST }), false),
        (|n| Some(Beside { others: 1, bytes: n << 20, changes: n, turn: false }), false),
    ];
    for (number, (told, tries)) in tells.into_iter().enumerate() {
        let mut steer = Steer::default();
        let (link, mut setting) = steer.begin(LIMITS, None).unwrap();
        let mut most = [0; 2];
        for n in 0..120 {
            // In the end it is told nothing any more.
            let half = n as usize / 60;
            steer.told(link, told(n).filter(|_| half == 0));
            let rate = if setting.connections > 8 { 9.0 } else { 4.0 } * MB;
            let now = Timestamp::ZERO + STEP * (n as u32 + 1);
            if let Some(decision) = steer.look(now, link, &seen(setting, rate, 0.001)) {
                setting = decision.setting;
            }
            most[half] = setting.connections.max(most[half]);
        }
        assert_eq!(most.map(|most| most > 8), [tries, true], "{number}: {most:?}");
    }
}

#[test]
fn two_links_behind_one_path_do_not_outbid_each_other() {
    let mut steer = Steer::default();
    let links: Vec<LinkId> = (0..2).map(|_| steer.begin(LIMITS, None).unwrap().0).collect();
    let mut now = Timestamp::ZERO;
    for _ in 0..600 {
        now = now + STEP;
        let settings: Vec<Setting> = links.iter().map(|l| steer.setting(*l).unwrap()).collect();
        let all: u16 = settings.iter().map(|setting| setting.connections).sum();
        for (link, setting) in links.iter().zip(settings) {
            let share = f64::from(setting.connections) / f64::from(all);
            // Full with two connections, and no sign of a queue or a loss.
            steer.look(now, *link, &seen(setting, 10.0 * MB * share, 0.0));
        }
    }
    let all: u16 = links.iter().map(|l| steer.setting(*l).unwrap().connections).sum();
    assert!(all <= 16, "{all} connections");
}
