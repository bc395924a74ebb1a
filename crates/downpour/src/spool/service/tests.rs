//! The service and its threads: what is asked of spools, and what a reload, a drain and a stop cut short.

use super::{
    Ask, Extension, Failing, InQuarantine, Instant, Ordering, Rules, STILL_THERE, SetApart, Spool,
    SpoolSection, SpoolService, SpoolStatus, TICKS_USUAL, Worker, lock,
};
use crate::site::{Clock, Daemon, Service, Site, Stop, Wish};
use downpour_catalog::{AdoptedFile, Change, Digest, OtherContent};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use std::{fs, thread};
use tokio::sync::oneshot::{
    self,
    error::TryRecvError::{Closed, Empty},
};
use tokio::time::{sleep, timeout};

/// A service whose spools have these files in quarantine (folder, path, number); and what is released.
fn service(
    spools: Vec<(&'static str, Vec<(&'static str, i64)>)>,
) -> (SpoolService, Arc<Mutex<Vec<&'static str>>>) {
    let (service, released) = (SpoolService::default(), Arc::new(Mutex::new(Vec::new())));
    for (own, files) in spools {
        let (ask, asked) = mpsc::channel();
        lock(&service.asks).push(ask);
        let released = released.clone();
        let lying = move |(path, file): &(&str, i64)| {
            let (class, text) = ("digest-differs".to_owned(), String::new());
            let path = (*path).to_owned();
            let place = format!(".quarantine/{path}");
            let reason = SetApart { path, file: *file, class, text, since: 0 };
            InQuarantine { spool: own.to_owned(), place, reason }
        };
        thread::spawn(move || {
            for ask in asked {
                match ask {
                    Ask::Quarantine(reply) => {
                        let _ = reply.send(files.iter().map(lying).collect());
                    }
                    Ask::Release(_, reply) => {
                        lock(&released).push(own);
                        let _ = reply.send(Err("another file is called so by now".to_owned()));
                    }
                }
            }
        });
    }
    (service, released)
}

async fn answered(service: &SpoolService) -> usize {
    let asks = lock(&service.asks).clone();
    service.quarantines(&asks).await.iter().flatten().count()
}

/// Waits until so many spools answer: one that has just begun may not do so in time.
async fn answer(service: &SpoolService, count: usize) {
    let answers = async {
        while answered(service).await != count {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(60), answers).await.expect("answers");
}

#[tokio::test]
async fn a_spool_that_gives_no_answer_keeps_nobody_waiting() {
    let (service, released) = service(vec![("/b", vec![("x", 1)])]);
    let (ask, asked) = mpsc::channel();
    lock(&service.asks).insert(0, ask);
    let spools = ["/a", "/b"].map(|folder| toml::from_str(&format!("folder = '{folder}'")));
    *lock(&service.spools) = spools.map(|section| SpoolStatus::of(&section.unwrap())).into();
    let (seen, end) = tokio::join!(service.quarantine(), service.release("x"));
    let seen = seen.unwrap();
    assert_eq!((seen.files.len(), seen.unanswered), (1, vec!["/a".to_owned()]));
    assert!(end.unwrap_err().what.contains("another file"));
    assert_eq!(*lock(&released), ["/b"]);
    // Of the others only what is there was asked of it, and nobody waits for that any more.
    for ask in asked.try_iter() {
        let Ask::Quarantine(reply) = ask else { panic!("it is asked to release") };
        assert!(reply.is_closed());
    }
}

#[tokio::test]
async fn of_spools_that_are_not_at_work_that_is_said() {
    let service = Arc::new(SpoolService::default());
    assert!(service.quarantine().await.unwrap().files.is_empty(), "there are none");
    lock(&service.spools).push(SpoolStatus::default());
    let (name, text) = ("x".to_owned(), String::new());
    lock(&service.failing).push(Failing { file: 7, name, tries: 3, next_try: None, text });
    let retry = |file: &str| service.retry(file).unwrap_err().status;
    let quarantine = service.quarantine().await.unwrap_err();
    let release = service.release("x").await.unwrap_err();
    assert_eq!([quarantine.status, release.status, retry("7")], [503; 3]);
    assert!(quarantine.what.contains("not at work"), "{}", quarantine.what);
    assert_eq!([retry("8"), retry("x")], [404, 400]);
}

#[tokio::test]
async fn what_a_stopped_service_shows_is_said_to_be_of_before() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = ended_daemon(folder.path()).await;
    let service = Extension(Arc::new(SpoolService::default()));
    let seen = super::list(super::State(daemon.site.clone()), service).await;
    let is = "the service spool is stopped: downpour service start spool";
    assert_eq!(seen.stopped.as_deref(), Some(is));
}

#[tokio::test]
async fn a_file_is_released_where_it_lies_and_that_spools_answer_is_told() {
    let spools = vec![("/a", vec![("x", 1), ("both", 2)]), ("/b", vec![("y", 3), ("both", 4)])];
    let (service, released) = service(spools);
    for (meant, said, by) in [
        ("y", "another file", vec!["/b"]),
        ("both", "of /a and of /b", vec![]),
        ("4", "another file", vec!["/b"]),
        ("z", "no file `z`", vec![]),
    ] {
        let problem = service.release(meant).await.unwrap_err();
        assert!(problem.what.contains(said), "{meant}: {}", problem.what);
        assert_eq!(std::mem::take(&mut *lock(&released)), by, "{meant}");
    }
    // A third one gave no answer.
    *lock(&service.spools) = vec![SpoolStatus::default(); 3];
    let problem = service.release("z").await.unwrap_err();
    assert!(problem.what.contains("of a spool that answers"), "{}", problem.what);
}

/// Its services do nothing any more.
async fn ended_daemon(folder: &Path) -> Daemon {
    let file = folder.join("site.toml");
    fs::write(&file, "[site]\nname = 'a'\n[api]\nlisten = '127.0.0.1:0'\n").unwrap();
    let daemon = Daemon::start(&file, Clock::system()).await.unwrap();
    daemon.end(Duration::ZERO).await;
    daemon
}

#[tokio::test]
async fn what_is_asked_stands_until_the_last_run_has_left_if_that_is_soon() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = ended_daemon(folder.path()).await;
    let (service, (wish, stop)) = (Arc::new(SpoolService::default()), Stop::new());
    let section: SpoolSection = toml::from_str("folder = '/data/in'").unwrap();
    lock(&service.spools).push(SpoolStatus::of(&section));
    let (over, stopped) = Default::default();
    let (site, began, clock) = (daemon.site.clone(), Instant::now(), Clock::system());
    let worker = Worker { service, site, stop, over, stopped, began, clock };
    // Another state folder stands in the place of its own: what commands are open is not known.
    let state = folder.path().join("state");
    let [kept, other] = ["kept", "other"].map(|name| folder.path().join(name));
    fs::rename(&state, &kept).unwrap();
    fs::create_dir(&state).unwrap();
    fs::copy(kept.join("daemon.lock"), state.join("daemon.lock")).unwrap();
    let arrivals = || worker.arrivals(Arc::new(Rules::new("a", &[])), &mpsc::channel().1);
    thread::scope(|threads| {
        let running = threads.spawn(arrivals);
        while !lock(&worker.service.standstill).contains("the state folder") {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!state.join(super::ARRIVALS).exists());
        fs::rename(&state, &other).unwrap();
        fs::rename(&kept, &state).unwrap();
        while !lock(&worker.service.standstill).is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
        wish.send_replace(Wish::Stop);
        running.join().unwrap().unwrap();
    });
    assert!(state.join(super::ARRIVALS).exists());
    wish.send_replace(Wish::Run);
    let ((ask, asked), (reply, mut answer)) = (mpsc::channel(), oneshot::channel());
    ask.send(Ask::Quarantine(reply)).unwrap();
    let trouble = || lock(&worker.service.spools)[0].trouble.clone();
    worker.pause(0, TICKS_USUAL - 1, &asked);
    assert_eq!((answer.try_recv().unwrap_err(), trouble().as_str()), (Empty, ""));
    worker.pause(0, TICKS_USUAL, &asked);
    assert_eq!((answer.try_recv().unwrap_err(), trouble().as_str()), (Closed, STILL_THERE));
    // It has left: that is no trouble any more, before all is looked at.
    wish.send_replace(Wish::Stop);
    let (worker, of) = (&worker, (section, Arc::new(Rules::new("a", &[]))));
    let spool = move || worker.spool(0, of, &asked).unwrap();
    thread::scope(|threads| threads.spawn(spool).join()).unwrap();
    assert_eq!(trouble(), "");
    // Somebody is at work there still, or again: to drain that is not waited for.
    let place = Path::new("/data/in");
    lock(&worker.service.at_work).insert(place.to_owned());
    wish.send_replace(Wish::Drain);
    assert!(worker.enter(place, |_| ()).is_none());
}

#[tokio::test]
async fn who_asks_while_a_tick_is_due_waits_until_it_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = ended_daemon(folder.path()).await;
    let (service, (_wish, stop)) = (Arc::new(SpoolService::default()), Stop::new());
    let (over, stopped) = Default::default();
    let (site, began, clock) = (daemon.site.clone(), Instant::now(), Clock::system());
    let worker = &Worker { service, site, stop, over, stopped, began, clock };
    let ((ask, asked), (reply, mut answer)) = (mpsc::channel(), oneshot::channel());
    ask.send(Ask::Quarantine(reply)).unwrap();
    let listen = move || {
        let section: SpoolSection = toml::from_str("folder = '/data/in'").unwrap();
        let (rules, catalog) = (Arc::new(Rules::new("a", &[])), worker.site.catalog.clone());
        let said = Box::new(|_, _| None);
        let mut spool = Spool::open(section, rules, catalog, Arc::default(), said).unwrap();
        worker.listen(Instant::now(), &mut spool, &asked).unwrap();
        asked
    };
    let asked = thread::scope(|threads| threads.spawn(listen).join()).unwrap();
    assert_eq!(answer.try_recv().unwrap_err(), Empty);
    assert!(asked.try_recv().is_ok());
}

#[test]
fn a_level_is_told_once_and_the_figures_have_what_comes_and_leaves() {
    use super::Level::{Alarm, Full, Room};
    let section: SpoolSection = toml::from_str("folder = '/data/in'").unwrap();
    let (service, mut status) = (SpoolService::default(), SpoolStatus::of(&section));
    let mut told = |level| {
        status.occupancy.level = level;
        service.is_fuller(&status)
    };
    let levels = [Room, Alarm, Alarm, Full, Alarm, Full, Room, Full];
    let expected = [false, true, false, true, false, true, false, true];
    assert_eq!(levels.map(&mut told), expected);
    assert!(!service.status().figures.contains_key("full_in_s"));
    let room = &mut status.occupancy;
    (room.in_bytes_per_s, room.out_bytes_per_s, room.full_in_s) = (3.0, 2.0, Some(7));
    lock(&service.spools).extend([status.clone(), status]);
    let figures = service.status().figures;
    let names = ["in_bytes_per_s", "out_bytes_per_s", "full_in_s"];
    assert_eq!(names.map(|name| figures[name]), [6.0, 4.0, 7.0]);
}

#[tokio::test]
async fn a_drain_lets_a_command_end_whatever_is_reloaded() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (file, began, go, ended) = (at("site.toml"), at("began"), at("go"), at("ended"));
    let mut text = "[site]\nname = 'a'\n[api]\nlisten = '127.0.0.1:0'\n".to_owned();
    fs::write(&file, &text).unwrap();
    let daemon = Daemon::start(&file, Clock::system()).await.unwrap();
    text += &format!(
        "[[remote]]\nname = 'b'\nkey = 'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'\n\
         [[rule]]\nname = 'r'\nmatch = '*'\nfrom = 'b'\ncommand = ['/bin/sh', '-c', \
         'echo >> {}; until test -e {}; do sleep 0.01; done; echo >> {}']\n",
        began.display(),
        go.display(),
        ended.display()
    );
    fs::write(&file, &text).unwrap();
    assert!(daemon.reload().await);
    daemon.end(Duration::ZERO).await;
    let (service, (wish, stop)) = (Arc::new(SpoolService::default()), Stop::new());
    let running = tokio::spawn(service.run(daemon.site.clone(), stop));
    let until = async |is: &dyn Fn() -> bool| {
        while !is() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    until(&|| daemon.site.config().state().join(super::ARRIVALS).exists()).await;
    thread::scope(|threads| threads.spawn(|| arrive(&daemon.site)).join()).unwrap();
    until(&|| began.exists()).await;
    wish.send_replace(Wish::Drain);
    fs::write(&file, text.replace("'r'", "'other'")).unwrap();
    assert!(daemon.reload().await);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!running.is_finished());
    fs::write(&go, "").unwrap();
    running.await.unwrap().unwrap();
    assert_eq!(fs::read_to_string(&ended).unwrap(), "\n");
}

#[tokio::test]
async fn commands_alone_stand_still_while_it_cannot_be_read_which_are_open() {
    let folder = tempfile::tempdir().unwrap();
    let (file, spool) = (folder.path().join("site.toml"), folder.path().join("in"));
    let mut text = "[site]\nname = 'a'\n[api]\nlisten = '127.0.0.1:0'\n".to_owned();
    fs::write(&file, &text).unwrap();
    let daemon = Daemon::start(&file, Clock::system()).await.unwrap();
    fs::create_dir(&spool).unwrap();
    text += "[[remote]]\nname = 'b'\nkey = 'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'\n\
             [[rule]]\nname = 'r'\nmatch = '*'\nto = 'b'\n";
    text += &format!("[[spool]]\nfolder = {spool:?}\n");
    fs::write(&file, &text).unwrap();
    assert!(daemon.reload().await);
    daemon.end(Duration::ZERO).await;
    let (service, (wish, stop)) = (Arc::new(SpoolService::default()), Stop::new());
    let place = daemon.site.config().state().join(super::ARRIVALS);
    let _ = fs::remove_file(&place);
    fs::create_dir(&place).unwrap();
    let running = tokio::spawn(service.clone().run(daemon.site.clone(), stop));
    let until = async |is: &dyn Fn() -> bool| {
        let waits = async {
            while !is() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(60), waits).await.expect("it comes");
    };
    let stands_still = || service.status().line.contains("arrivals.json");
    until(&stands_still).await;
    // It waits where it is.
    answer(&service, 1).await;
    assert!(service.status().line.contains("or move it away"), "{}", service.status().line);
    fs::remove_dir(&place).unwrap();
    until(&|| !stands_still()).await;
    assert!(place.exists() && !running.is_finished());
    wish.send_replace(Wish::Stop);
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn copies_break_off_when_it_is_stopped_after_it_failed() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = ended_daemon(folder.path()).await;
    let (service, (wish, stop)) = (Arc::new(SpoolService::default()), Stop::new());
    let of_failed = lock(&service.stopped).clone();
    wish.send_replace(Wish::Stop);
    service.run(daemon.site.clone(), stop).await.unwrap();
    assert!(of_failed.load(Ordering::Relaxed));
}

/// A file of site `b` has come. Blocks.
fn arrive(site: &Site) {
    let [here, there] = ["a", "b"].map(|name| site.catalog.site(name).unwrap());
    let file = AdoptedFile {
        site: there,
        name: "x".to_owned(),
        size: 0,
        rule: site.catalog.rule("r").unwrap(),
        digest: Digest::blake3([0; 32]),
        others: Vec::new(),
        replicas: vec![(here, "/data/x".to_owned())],
        other_content: OtherContent::NewVersion,
        origin: None,
        receipt: None,
    };
    let answers = site.catalog.apply(site.clock.now(), &[Change::Adopt(file)]).unwrap();
    assert!(answers[0].is_ok(), "{answers:?}");
}

/// Of a site with one spool; a second one comes with a reload, and what is open is a pipe at which the first run stands.
#[tokio::test]
async fn a_thread_that_hangs_holds_its_own_place_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("site.toml");
    let mut text = "[site]\nname = 'a'\n[api]\nlisten = '127.0.0.1:0'\n".to_owned();
    fs::write(&file, &text).unwrap();
    let daemon = Daemon::start(&file, Clock::system()).await.unwrap();
    text += "[[remote]]\nname = 'b'\nkey = 'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'\n\
             [[rule]]\nname = 'r'\nmatch = '*'\nto = 'b'\n";
    let mut add = |name: &str| {
        let spool = folder.path().join(name);
        fs::create_dir(&spool).unwrap();
        text += &format!("[[spool]]\nfolder = {spool:?}\nprefix = '{name}/'\n");
        fs::write(&file, &text).unwrap();
        spool
    };
    let one = add("one");
    assert!(daemon.reload().await);
    daemon.end(Duration::ZERO).await;
    let (service, (wish, stop)) = (Arc::new(SpoolService::default()), Stop::new());
    let pipe = daemon.site.config().state().join(super::ARRIVALS);
    let _ = fs::remove_file(&pipe);
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let run = || tokio::spawn(service.clone().run(daemon.site.clone(), stop.clone()));
    let until = async |is: &dyn Fn() -> bool| {
        let waits = async {
            while !is() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(60), waits).await.expect("it comes");
    };
    let stopped = lock(&service.stopped).clone();
    let first = run();
    answer(&service, 1).await;
    add("two");
    assert!(daemon.reload().await);
    answer(&service, 2).await;
    first.abort();
    let _ = first.await;
    assert!(!stopped.load(Ordering::Relaxed), "a copy goes on");
    // Somebody is still at work in one of them.
    until(&|| lock(&service.at_work).insert(one.clone())).await;
    let second = run();
    answer(&service, 1).await;
    until(&|| !lock(&service.spools)[0].trouble.is_empty()).await;
    answer(&service, 1).await;
    lock(&service.at_work).remove(&one);
    answer(&service, 2).await;
    wish.send_replace(Wish::Stop);
    until(&|| stopped.load(Ordering::Relaxed)).await;
    second.abort();
    let _ = second.await;
    assert!(stopped.load(Ordering::Relaxed), "a copy breaks off");
    // Who stands at it goes on, and who comes later finds none.
    let end = fs::File::options().read(true).write(true).open(&pipe).unwrap();
    fs::remove_file(&pipe).unwrap();
    drop(end);
}
