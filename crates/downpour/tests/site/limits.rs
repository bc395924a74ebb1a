//! What a site says that its kernel allows (`/v1/site/limits`): what comes of odd answers, and of odd requests.

use crate::fetching::{content, ended, fetch};
use crate::harness::{SiteProcess, Two, folder, until};
use crate::siege::{head, is_served, raw_as, read_until};
use axum::body::{Body, to_bytes};
use axum::http::Response;
use downpour_transport::control::{Caller, CallerSetup, ClientLimits, Endpoint, ServerLimits};
use downpour_transport::identity::Identity;
use futures_util::stream;
use serde_json::json;
use std::fs;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

const PATH: &str = "/v1/site/limits";

/// How a site answers.
#[derive(Clone, Debug)]
enum Odd {
    Says(u16, String),
    Never,
    Drips,
    Breaks,
}

impl Odd {
    async fn answer(self) -> Response<Body> {
        let piece = |bytes: &'static str| Ok::<_, io::Error>(bytes);
        let body = match self {
            Self::Says(status, text) => {
                return Response::builder().status(status).body(text.into()).expect("a status");
            }
            Self::Never => std::future::pending().await,
            Self::Drips => Body::from_stream(stream::unfold((), move |()| async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Some((piece(" "), ()))
            })),
            Self::Breaks => {
                let broken = Err(io::ErrorKind::ConnectionReset.into());
                Body::from_stream(stream::iter([piece("{\"limits\":"), broken]))
            }
        };
        Response::new(body)
    }
}

/// Stands before a site, with its key, for another one: says of its limits what it is told to, and hands on all else.
struct Front {
    addr: SocketAddr,
    odd: Arc<Mutex<Odd>>,
    asked: Arc<AtomicUsize>,
    _runtime: Runtime,
}

impl Front {
    fn before(site: &SiteProcess, other: &SiteProcess) -> Self {
        let key = |of: &SiteProcess| Identity::load_or_create(&of.path("state")).expect("a key");
        let caller = Arc::new(Caller::new(CallerSetup {
            addrs: vec![site.card.address.to_string()],
            server: site.card.key,
            identity: Arc::new(key(other)),
            bearer: None,
            limits: ClientLimits::default(),
        }));
        let odd = Arc::new(Mutex::new(Odd::Never));
        let (asked, says) = (Arc::<AtomicUsize>::default(), odd.clone());
        let counted = asked.clone();
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (any, own) = ("127.0.0.1:0".parse().expect("an address"), key(site));
        let endpoint = runtime.block_on(Endpoint::bind(any, &own, ServerLimits::default()));
        let endpoint = endpoint.expect("a port");
        let addr = endpoint.local_addr();
        let answer = move |request: axum::http::Request<_>| {
            let (caller, says, counted) = (caller.clone(), says.clone(), counted.clone());
            async move {
                let (head, body) = request.into_parts();
                if head.uri.path() == PATH {
                    counted.fetch_add(1, Ordering::Relaxed);
                    let odd = says.lock().expect("whole").clone();
                    return odd.answer().await;
                }
                let body = to_bytes(Body::new(body), 1 << 20).await.unwrap_or_default();
                let path = head.uri.to_string();
                let handed = async {
                    let answer = caller.call(head.method.as_str(), &path, &body).await?;
                    Ok::<_, downpour_transport::control::CallError>((
                        answer.status,
                        answer.whole(64 << 20).await?,
                    ))
                };
                let (status, bytes) = handed.await.unwrap_or((502, Vec::new()));
                Response::builder().status(status).body(bytes.into()).expect("a status")
            }
        };
        runtime.spawn(endpoint.serve(answer, std::future::pending(), Duration::ZERO));
        Self { addr, odd, asked, _runtime: runtime }
    }
}

/// Those by which nothing is known, then one that is believed.
fn odd_answers() -> Vec<Odd> {
    let says = |status, text: &str| Odd::Says(status, text.to_owned());
    let html = "<!doctype html><title>Sign in to this network</title>";
    let refused = r#"{"status":404,"code":"no-such-path","what":"nothing","todo":"nothing"}"#;
    let none = [
        says(404, refused),
        says(404, html),
        says(500, html),
        says(302, ""),
        says(204, ""),
        says(200, html),
        says(200, ""),
        says(200, r#"{"limits":"rmem_max=1"#),
        says(200, r#"{"limits":7}"#),
        says(200, r#"{"limits":["rmem_max=1"],"limits":null}"#),
        says(200, "{}"),
        says(200, &"[".repeat(100_000)),
        says(200, &format!(r#"{{"limits":"{}"}}"#, "x".repeat(10 << 20))),
        says(200, &" ".repeat(20 << 20)),
        says(200, r#"{"limits":"rmem_max=-1 wmem_max=18446744073709551616 tcp_wmem=1,2"}"#),
        Odd::Never,
        Odd::Drips,
        Odd::Breaks,
    ];
    // It is believed, and it is nonsense.
    let most = u64::MAX;
    let nonsense = format!(
        r#"{{"limits":"rmem_max=0 wmem_max=0 tcp_rmem={most},{most},{most} tcp_wmem=0,0,0 \u001b[2J congestion=bbr\u001b[2J,\u0000,cubic","later":-1}}"#
    );
    none.into_iter().chain([says(200, &nonsense)]).collect()
}

/// a has files, which d fetches through one that says odd things of a's limits.
#[test]
fn whatever_a_source_says_of_its_limits_the_file_comes() {
    let folder = folder();
    let site = |name: &str| SiteProcess::new(folder.path(), name);
    let (mut a, c, mut d) = (site("a"), site("c"), site("d"));
    a.configure("[transfer]\nfolders = [\"data\"]\nports = \"31200-31399\"");
    // Files become known at a, and c, to which they are to go, is away.
    a.trust(&c.card);
    a.trust(&d.card);
    a.configure("pull = true");
    let front = Front::before(&a, &d);
    let mut card = a.card.clone();
    card.address = front.addr.to_string().parse().expect("an address");
    d.trust(&card);
    d.configure("[mirror]\nof = [\"a\"]\nevery = \"200ms\"\n[tuner]\nevery = \"200ms\"");
    d.configure(
        "[[tuner_source]]\nname = \"said\"\nkind = \"static\"\nfrom = \"a\"\nto = \"d\"\n\
         throughput = \"10gbit\"\nrtt = \"80ms\"",
    );
    let odd = odd_answers();
    fs::create_dir_all(a.path("data")).expect("room");
    for number in 0..odd.len() {
        let file = a.path("data").join(number.to_string());
        fs::write(file, content(100_000 + number)).expect("room");
    }
    a.start();
    let data = a.path("data").to_str().expect("text").to_owned();
    a.done(&["transfer", "submit", &data, "c"]);
    d.start();
    let ask = json!({ "site": "a", "name": "0", "ask": true });
    *front.odd.lock().expect("whole") = odd[0].clone();
    until("d knows of the files, and of the path", || {
        fetch(&d, &ask).filter(|report| report.sources[0].takes_s.is_some())
    });
    let last = odd.len() - 1;
    for (number, odd) in odd.into_iter().enumerate() {
        let before = front.asked.load(Ordering::Relaxed);
        *front.odd.lock().expect("whole") = odd.clone();
        let wish = json!({ "site": "a", "name": number.to_string() });
        if number == last {
            // Who does not answer in time is planned without: on a busy machine, this one.
            until("it is believed, and not asked again", || {
                let before = front.asked.load(Ordering::Relaxed);
                fetch(&d, &ask)?;
                (front.asked.load(Ordering::Relaxed) == before).then_some(())
            });
        }
        let report = ended(&d, until("d knows of it too", || fetch(&d, &wish)));
        assert_eq!(report.failure, None, "{odd:?}: {report:?}\n{}", d.log());
        let here = fs::read(d.path("inbox").join(number.to_string())).expect("it is here");
        assert!(here == content(100_000 + number), "{odd:?}");
        assert!(front.asked.load(Ordering::Relaxed) > before, "{odd:?}: it was asked");
        let plan = &report.sources[0].plan;
        let line = |name: &str| {
            let line = plan.iter().find(|line| line.name == name).expect("a line");
            format!("{} {}", line.value, line.why)
        };
        let unknown =
            line("send_buffer").contains("how far the sender's autotuning goes is not known");
        assert_eq!(unknown, number != last, "{odd:?}: {plan:?}");
        assert!(!format!("{report:?}").contains("u{1b}"), "{report:?}");
    }
    // What it said is not asked for again for a while.
    let before = front.asked.load(Ordering::Relaxed);
    fetch(&d, &json!({ "site": "a", "name": "0" })).expect("an answer");
    assert_eq!(front.asked.load(Ordering::Relaxed), before);
    assert!(d.runs());
}

#[test]
fn who_may_not_ask_for_limits_is_told_so_and_who_asks_all_the_time_harms_nobody() {
    let sites = Two::start(["", ""]);
    let b = Identity::load_or_create(&sites.b.path("state")).expect("a key");
    let stranger = Identity::generate();
    let chunked = "transfer-encoding: chunked\r\n";
    let long = "content-length: 10000000000\r\n";
    for (who, method, path, more, status) in [
        (&stranger, "GET", PATH, "", "401"),
        (&stranger, "GET", PATH, long, "401"),
        (&stranger, "POST", PATH, "content-length: 0\r\n", "405"),
        (&b, "GET", PATH, "", "200"),
        (&b, "HEAD", PATH, "", "200"),
        (&b, "GET", "/v1/site/limits?of=c&of=%00", "", "200"),
        (&b, "POST", PATH, "content-length: 0\r\n", "403"),
        (&b, "DELETE", PATH, "", "403"),
        (&b, "GET", "/v1/site/limits/", "", "403"),
        (&b, "GET", PATH, long, "413"),
        (&b, "GET", PATH, chunked, "200"),
    ] {
        let mut raw = raw_as(&sites.a, who);
        // With an admin's token, which opens nothing that is between sites.
        raw.write_all(head(&sites.a, method, path, more).as_bytes()).expect("it is read");
        let answer = read_until(&mut raw, "\r\n\r\n");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path}: {answer}");
        if more == chunked {
            // The rest of such a body is read no further than what is in buffers.
            let piece = [b"10000\r\n".as_slice(), &[b'x'; 0x10000], b"\r\n"].concat();
            let mut sent = 0_usize;
            while raw.write_all(&piece).is_ok() {
                sent += piece.len();
                assert!(sent < 1 << 30, "it reads on for ever");
            }
        }
    }
    let request = head(&sites.a, "GET", PATH, "");
    let flooding: Vec<_> = (0..4)
        .map(|_| {
            let mut raw = raw_as(&sites.a, &b);
            let request = request.clone();
            std::thread::spawn(move || {
                let ask = |_: &i32| {
                    raw.write_all(request.as_bytes()).expect("it is read");
                    read_until(&mut raw, "}").contains("200 OK")
                };
                (0..500).filter(ask).count()
            })
        })
        .collect();
    while flooding.iter().any(|thread| !thread.is_finished()) {
        is_served(&sites.a);
    }
    let answers: usize = flooding.into_iter().map(|thread| thread.join().expect("it ends")).sum();
    assert_eq!(answers, 2000);
}
