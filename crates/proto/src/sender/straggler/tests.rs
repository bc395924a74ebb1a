//! Stories of groups as the policy sees them, review by review.

use super::{REVIEW_INTERVAL, Standing, Stragglers, Trial, Verdict};
use crate::ids::{ReceiverId, Round};
use crate::time::{Duration, Timestamp};
use crate::units::Rate;
use alloc::vec::Vec;

/// Runs reviews for `secs`; receiver 1 gets `share` of the stream while on trial, all of it otherwise.
fn verdicts(secs: u64, share: f64, loss: f64) -> Vec<(u64, Verdict)> {
    let mut policy = Stragglers::new(Timestamp::ZERO);
    let mut seen = Vec::new();
    let mut away = false;
    for step in 0..secs * 10 {
        let now = Timestamp::ZERO + REVIEW_INTERVAL * step as u32;
        let share_got = if policy.on_trial(ReceiverId(1)) { share } else { 1.0 - loss };
        let got = (share_got * 1000.0) as u64;
        let free = away || policy.on_trial(ReceiverId(1));
        let rate = Rate::from_mbps(100).scale(if free { 1.0 } else { share });
        let slow = Standing { id: ReceiverId(1), loss, span: (1000, got) };
        let healthy = Standing { id: ReceiverId(2), loss: 0.0, span: (1000, 1000) };
        let standings = [healthy, healthy, slow];
        let limiting = if away { ReceiverId(2) } else { ReceiverId(1) };
        let here = if away { &standings[..2] } else { &standings[..] };
        if let Some(v) = policy.review(now, 3, here, Some(limiting), rate) {
            seen.push((step / 10, v));
            match v {
                Verdict::Leave(_) => away = true,
                Verdict::Return(_) => away = false,
                Verdict::Try(_) => {}
            }
        }
    }
    seen
}

#[test]
fn a_receiver_with_a_tenth_of_the_rate_leaves_within_two_seconds() {
    let seen = verdicts(3, 0.1, 0.0);
    assert_eq!(seen[0].1, Verdict::Try(ReceiverId(1)));
    assert!(matches!(seen[1], (0..2, Verdict::Leave(ReceiverId(1)))), "{seen:?}");
}

#[test]
fn one_that_is_merely_slower_stays_and_is_tried_ever_less_often() {
    let seen = verdicts(100, 0.8, 0.0);
    assert!(seen.iter().all(|(_, v)| !matches!(v, Verdict::Leave(_))));
    let trials = seen.iter().filter(|(_, v)| matches!(v, Verdict::Try(_))).count();
    assert!((3..=6).contains(&trials), "{seen:?}");
}

#[test]
fn a_trial_outlasts_reviews_that_hear_of_nobody() {
    let mut policy = Stragglers::new(Timestamp::ZERO);
    let all = [1, 2].map(|id| Standing { id: ReceiverId(id), loss: 0.0, span: (340, 340) });
    let trials = (0..300).filter(|step| {
        let now = Timestamp::ZERO + REVIEW_INTERVAL * *step;
        // Rounds of 0.2 s; both limit by turns.
        let heard = if step % 2 == 0 { &all[..] } else { &[] };
        let limiting = Some(ReceiverId(1 + step / 2 % 2)).filter(|id| !policy.on_trial(*id));
        let verdict = policy.review(now, 2, heard, limiting, Rate::from_mbps(20));
        assert!(!matches!(verdict, Some(Verdict::Leave(_))), "{verdict:?}");
        matches!(verdict, Some(Verdict::Try(_)))
    });
    // After 0, 5, 15 s, each of the two.
    let trials = trials.count();
    assert!((4..=7).contains(&trials), "{trials}");
}

#[test]
fn one_that_loses_a_third_leaves_and_is_asked_back_on_trial() {
    let seen = verdicts(40, 0.9, 0.3);
    let left = seen.iter().position(|(_, v)| *v == Verdict::Leave(ReceiverId(1))).unwrap();
    assert!(seen[left].0 <= 5, "{seen:?}");
    assert!(
        seen[left..]
            .iter()
            .any(|(at, v)| { *v == Verdict::Return(ReceiverId(1)) && *at >= seen[left].0 + 9 })
    );
}

/// Whoever was not followed has lost much until then, and is heard of late where its queue is full.
#[test]
fn what_one_lost_before_it_was_followed_does_not_make_it_leave() {
    let mut policy = Stragglers::new(Timestamp::ZERO);
    let healthy = Standing { id: ReceiverId(1), loss: 0.0, span: (1000, 1000) };
    for step in 0..50 {
        let got = if step == 0 { 600 } else { 950 };
        let slow = Standing { id: ReceiverId(2), loss: 0.4, span: (1000, got) };
        let now = Timestamp::ZERO + REVIEW_INTERVAL * step;
        let verdict = policy.review(now, 2, &[healthy, slow], None, Rate::from_mbps(10));
        assert_eq!(verdict, None, "{step}");
    }
    assert!(policy.is_doubted(Timestamp::ZERO + REVIEW_INTERVAL * 50, ReceiverId(2)));
}

#[test]
fn a_trial_in_vain_does_not_delay_that_of_another() {
    let mut policy = Stragglers::new(Timestamp::ZERO);
    let at = |step: u32| Timestamp::ZERO + REVIEW_INTERVAL * step;
    let (healthy, slow) = (ReceiverId(1), ReceiverId(2));
    let left = (0..50).find(|step| {
        // At first the healthy one seems to limit.
        let limiting = if *step < 5 { healthy } else { slow };
        let got = if policy.on_trial(slow) { 100 } else { 1000 };
        let standings = [(healthy, 1000), (slow, got)].map(|(id, received)| Standing {
            id,
            loss: 0.0,
            span: (1000, received),
        });
        let rate = if policy.on_trial(slow) { 100 } else { 10 };
        let verdict =
            policy.review(at(*step), 2, &standings, Some(limiting), Rate::from_mbps(rate));
        verdict == Some(Verdict::Leave(slow))
    });
    // 1.5 s of trial, half a second between, 0.7 s of trial.
    assert!(left.is_some_and(|step| step <= 30), "{left:?}");
    assert_eq!(policy.leaving(Round(7)), Some(slow));
    policy.forget(slow);
    assert_eq!(policy.leaving(Round(7)), None);
}

#[test]
fn two_that_are_slow_alike_are_tried_together_and_leave() {
    for group in [16, 6] {
        assert_eq!(who_leaves(group), [ReceiverId(1), ReceiverId(2)], "{group}");
    }
    assert_eq!(who_leaves(5), [], "two of five are not few");
}

/// Of a group in which the first two have a tenth of the rate.
fn who_leaves(group: u32) -> Vec<ReceiverId> {
    let mut policy = Stragglers::new(Timestamp::ZERO);
    let slow = [ReceiverId(1), ReceiverId(2)];
    let mut left = Vec::new();
    for step in 0..40 {
        let here = |id: &ReceiverId| !left.contains(id);
        let limiting = slow.into_iter().find(|id| here(id) && !policy.on_trial(*id));
        let (rate, got) = if limiting.is_some() { (10, 1000) } else { (100, 100) };
        let standings: Vec<Standing> = (1..=group)
            .map(ReceiverId)
            .filter(here)
            .map(|id| {
                let received = if slow.contains(&id) { got } else { 1000 };
                Standing { id, loss: 0.0, span: (1000, received) }
            })
            .collect();
        let now = Timestamp::ZERO + REVIEW_INTERVAL * step;
        let (streaming, limiting) = (standings.len() as u32, limiting.or(Some(ReceiverId(3))));
        let rate = Rate::from_mbps(rate);
        if let Some(Verdict::Leave(id)) = policy.review(now, streaming, &standings, limiting, rate)
        {
            left.push(id);
        }
    }
    left
}

/// The stream goes no faster than the first, and who comes back to a slow one is not seen to be slow.
#[test]
fn who_holds_the_stream_down_is_tried_however_many_may_come_back() {
    let (group, slow) = (200, 60);
    let mut policy = Stragglers::new(Timestamp::ZERO);
    let at = |step: u32| Timestamp::ZERO + REVIEW_INTERVAL * step;
    let mut away: Vec<ReceiverId> = (2..=slow).map(ReceiverId).collect();
    for id in &away {
        policy.leave(at(0), *id);
    }
    let (mut fast, steps) = (0, 100..3000);
    for step in steps.clone() {
        let here = |id: &ReceiverId| !away.contains(id);
        let is_slow = |id: ReceiverId| id.0 <= slow;
        let followed = |id: &ReceiverId| here(id) && !policy.on_trial(*id);
        let limiting = (1..=slow).map(ReceiverId).find(followed);
        let (rate, got) = if limiting.is_some() { (10, 1000) } else { (100, 100) };
        fast += u32::from(limiting.is_none());
        let standings: Vec<Standing> = (1..=group)
            .map(ReceiverId)
            .filter(here)
            .map(|id| {
                let received = if is_slow(id) { got } else { 1000 };
                Standing { id, loss: 0.0, span: (1000, received) }
            })
            .collect();
        let (streaming, limiting) = (standings.len() as u32, limiting.or(Some(ReceiverId(group))));
        let rate = Rate::from_mbps(rate);
        match policy.review(at(step), streaming, &standings, limiting, rate) {
            Some(Verdict::Leave(id)) => away.push(id),
            Some(Verdict::Return(id)) => away.retain(|other| *other != id),
            _ => {}
        }
    }
    assert!(away.len() + 2 >= slow as usize, "{} of {slow} are away", away.len());
    let steps = steps.len() as u32;
    assert!(fast * 10 > steps * 9, "fast for {fast} of {steps} reviews");
}

/// All but the last fail each time: the first ones are due again before each of the others has had its turn.
#[test]
fn each_of_many_has_its_turn_to_come_back() {
    let (group, last) = (300, 150);
    let mut policy = Stragglers::new(Timestamp::ZERO);
    (2..=last).for_each(|id| _ = policy.leave(Timestamp::ZERO, ReceiverId(id)));
    let healthy = Standing { id: ReceiverId(1), loss: 0.0, span: (1000, 1000) };
    let mut back = None;
    let returned = (0..6_000).any(|step| {
        let now = Timestamp::ZERO + REVIEW_INTERVAL * step;
        let slow = back.map(|id| Standing { id, loss: 0.0, span: (1000, 100) });
        let standings: Vec<Standing> = [Some(healthy), slow].into_iter().flatten().collect();
        let rate = Rate::from_mbps(100);
        match policy.review(now, group, &standings, None, rate) {
            Some(Verdict::Return(id)) => back = Some(id),
            Some(Verdict::Leave(_)) => back = None,
            _ => {}
        }
        back == Some(ReceiverId(last))
    });
    assert!(returned);
}

#[test]
fn one_that_is_not_heard_when_it_comes_back_keeps_no_other_away() {
    let mut policy = Stragglers::new(Timestamp::ZERO);
    let at = |secs| Timestamp::ZERO + Duration::from_secs(secs);
    let (mute, other) = (ReceiverId(1), ReceiverId(2));
    policy.leave(at(0), mute);
    policy.leave(at(0), other);
    assert_eq!(policy.due_back(at(12)), Some(mute));
    policy.leave(at(17), mute);
    policy.rest(at(17), mute);
    assert_eq!(policy.due_back(at(176)), None);
    assert_eq!(policy.due_back(at(177)), Some(other));
}

#[test]
fn over_a_long_way_the_rate_has_longer_to_rise() {
    // Without the slow one the stream is twice as fast only after 0.65 s.
    let leaves = |round_trip| {
        let mut policy = Stragglers::new(Timestamp::ZERO);
        policy.set_round_trip(round_trip);
        let (slow, other) = (ReceiverId(1), ReceiverId(2));
        (0..30u32).any(|step| {
            let tried = policy.trial.as_ref().map_or(0, |trial| {
                (Timestamp::ZERO + REVIEW_INTERVAL * step).since(trial.from).as_millis()
            });
            let rate = if tried >= 650 { 100 } else { 40 };
            let (got, limiting) = if policy.on_trial(slow) { (400, other) } else { (1000, slow) };
            let standings = [(slow, got), (other, 1000)].map(|(id, received)| Standing {
                id,
                loss: 0.0,
                span: (1000, received),
            });
            let now = Timestamp::ZERO + REVIEW_INTERVAL * step;
            let rate = Rate::from_mbps(rate);
            let verdict = policy.review(now, 2, &standings, Some(limiting), rate);
            verdict == Some(Verdict::Leave(slow))
        })
    };
    assert!(leaves(Duration::from_millis(120)));
    assert!(!leaves(Duration::from_millis(1)), "the other one seemed to limit as much");
}

#[test]
fn who_limits_for_a_moment_is_not_tried() {
    let mut policy = Stragglers::new(Timestamp::ZERO);
    for step in 0..20u32 {
        let all = [1, 2, 3].map(|id| Standing { id: ReceiverId(id), loss: 0.0, span: (9, 9) });
        let now = Timestamp::ZERO + REVIEW_INTERVAL * step;
        let limiting = Some(ReceiverId(1 + step % 3));
        assert_eq!(policy.review(now, 3, &all, limiting, Rate::from_mbps(20)), None);
    }
}

#[test]
fn one_whose_leaving_makes_nothing_faster_stays() {
    let mut policy = Stragglers::new(Timestamp::ZERO);
    let (one, other) = (ReceiverId(1), ReceiverId(2));
    for step in 0..600 {
        let now = Timestamp::ZERO + REVIEW_INTERVAL * step;
        // An overloaded host: who is not followed loses most, and the stream is hardly faster.
        let (got, rate) = if policy.on_trial(one) { (300, 120) } else { (1000, 80) };
        let standings = [(one, got), (other, 1000)].map(|(id, received)| Standing {
            id,
            loss: 0.0,
            span: (1000, received),
        });
        let verdict = policy.review(now, 2, &standings, Some(one), Rate::from_mbps(rate));
        assert_ne!(verdict, Some(Verdict::Leave(one)));
    }
}

#[test]
fn each_waits_twice_as_long_the_second_time_and_of_many_nobody_is_forgotten() {
    let mut policy = Stragglers::new(Timestamp::ZERO);
    let at = |secs| Timestamp::ZERO + Duration::from_secs(secs);
    let all = || (0..2_000).map(ReceiverId);
    for id in all() {
        policy.leave(at(0), id);
    }
    let told = |policy: &Stragglers| all().filter(|id| policy.is_told(*id)).count();
    assert_eq!((told(&policy), policy.away.len()), (2_000, 2_000));
    assert_eq!((policy.due_back(at(10)), told(&policy)), (Some(ReceiverId(0)), 1_999));
    policy.leave(at(10), ReceiverId(0));
    assert_eq!(policy.away[&ReceiverId(0)], (at(30), Duration::from_secs(20)));
    let back: Vec<_> = (20..3_000).filter_map(|secs| policy.due_back(at(secs))).collect();
    assert_eq!((back.len(), told(&policy)), (2_000, 0), "each once");
    let keep = |policy: &mut Stragglers, id| {
        let round_trip = Duration::from_millis(10);
        policy.trial = Some(Trial::new(id, at(0), Rate::from_mbps(1), round_trip));
        policy.keep(at(0), at(0));
    };
    all().for_each(|id| keep(&mut policy, id));
    let first = policy.passed[&ReceiverId(0)].1;
    keep(&mut policy, ReceiverId(0));
    assert_eq!((policy.passed.len(), policy.passed[&ReceiverId(0)].1), (2_000, first * 2));
}

#[test]
fn who_is_asked_back_and_cannot_come_is_asked_again_later() {
    let mut policy = Stragglers::new(Timestamp::ZERO);
    let (one, other) = (ReceiverId(1), ReceiverId(2));
    policy.came_to_nothing(Timestamp::ZERO, one);
    assert_eq!(policy.leaving(Round(0)), None, "it was not asked back");
    policy.leave(Timestamp::ZERO, one);
    assert_eq!(policy.leaving(Round(0)), Some(one));
    let here = [Standing { id: other, loss: 0.0, span: (1000, 1000) }];
    let mut asked = Vec::new();
    for step in 0..350 {
        let now = Timestamp::ZERO + REVIEW_INTERVAL * step;
        let rate = Rate::from_mbps(100);
        if let Some(Verdict::Return(id)) = policy.review(now, 2, &here, None, rate) {
            policy.came_to_nothing(now, id);
            assert!(!policy.on_trial(id));
            assert_eq!(policy.leaving(Round(0)), None, "it may wait in its group");
            asked.push(step / 10);
        }
    }
    assert_eq!(asked, [10, 30]);
}

#[test]
fn a_single_receiver_is_never_a_straggler() {
    let mut policy = Stragglers::new(Timestamp::ZERO);
    let only = Standing { id: ReceiverId(1), loss: 0.5, span: (1000, 100) };
    for step in 0..100u32 {
        let now = Timestamp::ZERO + Duration::from_millis(100) * step;
        let rate = Rate::from_mbps(10);
        assert_eq!(policy.review(now, 1, &[only], Some(ReceiverId(1)), rate), None);
    }
}
