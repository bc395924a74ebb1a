//! From a request to the handler and back.
//!
//! In this order (`docs/protocol.md#CTL-7`): the node's key; the token; path and method; the session and the
//! receiver named in the headers; the ticket's time, for nodes that have not joined; the body. So a stranger
//! learns nothing but that it is one.

use super::body::{EventBody, Outgoing};
use super::bulk::{self, Wanted};
use super::crowd::Place;
use super::limits::BODY_LEN_MAX;
use super::members::Subscribed;
use super::stall::{self, Use};
use super::{Admitted, Answer, Connection, Core, Member, SessionHandler, json, refusal};
use crate::control::api::{
    ClockReply, HaveRequest, JoinRequest, LeaveRequest, PROTOCOL_VERSION, RECEIVER_HEADER,
    ReadyRequest, SESSION_HEADER, SessionId, SignedReceipt, Token, TurnReply, TurnRequest, Word,
};
use crate::control::error::{ApiError, ErrorCode};
use crate::stream::{TOLD_HEADER, TUNING_HEADER};
use downpour_proto::{BlockKind, ReceiverId};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HeaderValue, RANGE, WWW_AUTHENTICATE};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use subtle::ConstantTimeEq;
use tokio::time::{MissedTickBehavior, interval, timeout};

const REPAIR_PATH: &str = "/v1/repair/";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Route {
    Join,
    Ready,
    Events,
    Have,
    Receipt,
    Leave,
    Word,
    Turn,
    Bytes(BlockKind),
    Repair,
    Clock,
}

impl Route {
    fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/join" => Self::Join,
            "/v1/ready" => Self::Ready,
            "/v1/events" => Self::Events,
            "/v1/have" => Self::Have,
            "/v1/receipt" => Self::Receipt,
            "/v1/leave" => Self::Leave,
            "/v1/word" => Self::Word,
            "/v1/turn" => Self::Turn,
            "/v1/data" => Self::Bytes(BlockKind::Data),
            "/v1/clock" => Self::Clock,
            "/v1/manifest" => Self::Bytes(BlockKind::Manifest),
            path if path.starts_with(REPAIR_PATH) => Self::Repair,
            _ => return None,
        })
    }

    fn method(self) -> Method {
        match self {
            Self::Events | Self::Bytes(_) | Self::Repair | Self::Clock => Method::GET,
            Self::Join | Self::Ready | Self::Have | Self::Receipt => Method::POST,
            Self::Leave | Self::Word | Self::Turn => Method::POST,
        }
    }
}

/// Answers one request.
pub(super) async fn answer<H: SessionHandler>(
    core: Arc<Core<H>>,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Answer {
    let node = connection.conn.node;
    if !core.clients.allow(&node) {
        let message =
            format!("the sender takes only nodes on its list, and key {node} is not on it");
        return refusal(&ApiError::new(ErrorCode::NotAllowed, message));
    }
    if !has_token(request.headers(), &core.token) {
        let message = "the token is missing or is not this session's: use the sender's ticket";
        let mut answer = refusal(&ApiError::new(ErrorCode::WrongToken, message));
        answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return answer;
    }
    connection.place.prove();
    let Some(route) = Route::of(request.uri().path()) else {
        return refusal(&ApiError::new(ErrorCode::NotFound, "there is no such path"));
    };
    if *request.method() != route.method() {
        let message = format!("this path takes {} only", route.method());
        let mut answer = refusal(&ApiError::new(ErrorCode::WrongMethod, message));
        let allow = if route.method() == Method::GET { "GET" } else { "POST" };
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
        return answer;
    }
    dispatch(&core, &connection, route, request).await.unwrap_or_else(|error| refusal(&error))
}

async fn dispatch<H: SessionHandler>(
    core: &Arc<Core<H>>,
    connection: &Connection,
    route: Route,
    request: Request<Incoming>,
) -> Result<Answer, ApiError> {
    let member = named_member(core, connection, request.headers())?;
    // Who has joined may come back for as long as the session lasts.
    let known = || member.is_some() || core.members.knows(connection.conn.node);
    check_time(core.expires_unix_s).or_else(|over| if known() { Ok(()) } else { Err(over) })?;
    let joined = || {
        let message =
            format!("join first, and send the headers {SESSION_HEADER} and {RECEIVER_HEADER}");
        member.clone().ok_or_else(|| ApiError::new(ErrorCode::NotMember, message))
    };
    let handler = &*core.handler;
    match route {
        Route::Join => join(core, connection, body(core, request).await?).await,
        Route::Ready => {
            let (member, ready) = (joined()?, body::<H, ReadyRequest>(core, request).await?);
            handler.ready(&member, ready).await.map(|()| done())
        }
        Route::Have => {
            let (member, have) = (joined()?, body::<H, HaveRequest>(core, request).await?);
            have.check().map_err(bad_request)?;
            handler.have(&member, have).await.map(|()| done())
        }
        Route::Receipt => {
            let (member, proof) = (joined()?, body::<H, SignedReceipt>(core, request).await?);
            let bad = |reason: String| ApiError::new(ErrorCode::BadReceipt, reason);
            let receipt = proof.verify(&member.node).map_err(|error| bad(error.to_string()))?;
            if receipt.session != core.session || receipt.receiver != member.receiver {
                return Err(bad("bad receipt: of another session or receiver".to_owned()));
            }
            receipt.check().map_err(bad_request)?;
            handler.receipt(&member, receipt, proof).await.map(|()| done())
        }
        Route::Leave => {
            let (member, leave) = (joined()?, body::<H, LeaveRequest>(core, request).await?);
            leave.check().map_err(bad_request)?;
            handler.leave(&member, leave).await.map(|()| done())
        }
        Route::Word => {
            let (member, word) = (joined()?, body::<H, Word>(core, request).await?);
            word.check().map_err(bad_request)?;
            handler.word(&member, word).await.map(|()| done())
        }
        Route::Turn => {
            let (member, turn) = (joined()?, body::<H, TurnRequest>(core, request).await?);
            Ok(json(&TurnReply(stall::lock(&core.accounts).turn(&member.node, turn.wants))))
        }
        Route::Events => events(core, connection, joined()?),
        Route::Clock => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Ok(json(&ClockReply { unix_ns: now.as_nanos() as u64 }))
        }
        Route::Bytes(_) | Route::Repair => bulk(core, &connection.used, route, &request).await,
    }
}

/// Bytes and repair symbols.
async fn bulk<H: SessionHandler>(
    core: &Arc<Core<H>>,
    used: &Arc<Use>,
    route: Route,
    request: &Request<Incoming>,
) -> Result<Answer, ApiError> {
    let mut answer = match route {
        Route::Bytes(kind) => {
            let wanted = Wanted::parse(request.headers().get(RANGE));
            bulk::range(core, used, kind, wanted).await?
        }
        _ => {
            let block = request.uri().path().strip_prefix(REPAIR_PATH).unwrap_or_default();
            let query = request.uri().query().unwrap_or_default();
            let code = core.handler.code();
            let end = code.repair_max(code.block_symbols_max());
            let (block, symbols) = bulk::parse_repair(block, query, end).ok_or_else(|| {
                let form = "expected /v1/repair/d7?from=0&count=8 (or m7), symbols below";
                bad_request(&format!("{form} {end}"))
            })?;
            bulk::repair(core, block, symbols).await?
        }
    };
    let receiver = request.headers().get(RECEIVER_HEADER).and_then(|value| value.to_str().ok());
    let receiver = receiver.and_then(|number| number.parse().ok()).map(ReceiverId);
    if let (Some(receiver), Some(bytes)) = (receiver, answer.body().size_hint().exact())
        && route != Route::Bytes(BlockKind::Manifest)
        && answer.status().is_success()
    {
        core.handler.given(receiver, bytes);
    }
    carry_bulk(used, request.headers(), answer.headers_mut());
    Ok(answer)
}

/// Answers one request on a connection without encryption: bulk for who has the token that was told at JOIN, nothing else.
pub(super) async fn answer_plain<H: SessionHandler>(
    core: Arc<Core<H>>,
    used: &Arc<Use>,
    place: &Place,
    request: Request<Incoming>,
) -> Answer {
    if !core.plain.as_ref().is_some_and(|token| has_token(request.headers(), token)) {
        let message = "without encryption only bulk is given, with the token told at JOIN";
        return refusal(&ApiError::new(ErrorCode::WrongToken, message));
    }
    place.prove();
    let route = Route::of(request.uri().path()).filter(|_| *request.method() == Method::GET);
    match route {
        Some(route @ (Route::Bytes(_) | Route::Repair)) => {
            bulk(&core, used, route, &request).await.unwrap_or_else(|error| refusal(&error))
        }
        _ => refusal(&ApiError::new(ErrorCode::NotFound, "there is no such path here")),
    }
}

async fn join<H: SessionHandler>(
    core: &Core<H>,
    connection: &Connection,
    request: JoinRequest,
) -> Result<Answer, ApiError> {
    if request.protocol != PROTOCOL_VERSION {
        let message = format!(
            "the sender speaks version {PROTOCOL_VERSION} of the protocol, the receiver version {}: \
             install the same downpour on both",
            request.protocol
        );
        return Err(ApiError::new(ErrorCode::WrongVersion, message));
    }
    request.check().map_err(bad_request)?;
    let code = core.handler.code();
    if !request.codes.contains(&code.number()) {
        // docs/protocol.md#CODE-3
        let message = format!(
            "the session is sent with --code {}, which the receiver does not know: install the same \
             downpour on both, or send without --code",
            code.name()
        );
        return Err(ApiError::new(ErrorCode::WrongVersion, message));
    }
    // Before anything is changed: who is refused keeps the place that it has.
    let Some(room) = core.members.room() else {
        return Err(ApiError::new(ErrorCode::Busy, "the session has no room for more receivers"));
    };
    let Admitted { reply, replaced } = core.handler.join(&connection.conn, request).await?;
    room.bind(reply.receiver, connection.conn.node);
    replaced.inspect(|old| core.members.forget(*old));
    stall::lock(&core.accounts).receiver = Some(connection.conn.node);
    Ok(json(&reply))
}

fn events<H: SessionHandler>(
    core: &Core<H>,
    connection: &Connection,
    member: Member,
) -> Result<Answer, ApiError> {
    let Some(subscribed) = core.members.subscribe(member, &core.handler) else {
        return Err(ApiError::new(ErrorCode::NotMember, "join first"));
    };
    connection.used.carry_events();
    let mut ping = interval(core.limits.ping_every);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let Subscribed { queue, overflowed, subscription } = subscribed;
    let body = EventBody { queue, overflowed, ping, _subscription: subscription };
    let mut answer = Response::new(Outgoing::Events(body));
    let ndjson = HeaderValue::from_static("application/x-ndjson");
    answer.headers_mut().insert(CONTENT_TYPE, ndjson);
    Ok(answer)
}

/// Sets the connection's socket as the receiver asks. The answer tells what this machine cannot give of it, and what the
/// kernel says of the connection.
pub(super) fn carry_bulk(used: &Use, asked: &HeaderMap, answer: &mut HeaderMap) {
    let asked = asked.get(TUNING_HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let lacks = used.carry_bulk(asked);
    for (name, text) in [(TUNING_HEADER, lacks), (TOLD_HEADER, used.told().to_string())] {
        // Names, numbers and plain words.
        if let Some(value) = HeaderValue::from_str(&text).ok().filter(|value| !value.is_empty()) {
            answer.insert(name, value);
        }
    }
}

fn has_token(headers: &HeaderMap, token: &Token) -> bool {
    let given = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "))
        .and_then(|text| Token::from_text(text.trim()));
    given.is_some_and(|given| given.as_bytes().ct_eq(token.as_bytes()).into())
}

/// By this machine's clock and its own copy of the ticket (`docs/protocol.md#TICK-3`).
fn check_time(expires_unix_s: u64) -> Result<(), ApiError> {
    // A clock before 1970 is wrong in any case: let it pass rather than lock everybody out.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    if now < expires_unix_s {
        return Ok(());
    }
    let message = format!(
        "the ticket expired {} s ago by the sender's clock: ask for a new one",
        now - expires_unix_s
    );
    Err(ApiError::new(ErrorCode::TicketExpired, message))
}

/// The receiver that the headers name, if they name one.
fn named_member<H: SessionHandler>(
    core: &Core<H>,
    connection: &Connection,
    headers: &HeaderMap,
) -> Result<Option<Member>, ApiError> {
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or(""));
    if let Some(session) = text(SESSION_HEADER)
        && SessionId::from_text(session) != Some(core.session)
    {
        let message = "the sender was restarted and has another session now: join again";
        return Err(ApiError::new(ErrorCode::UnknownSession, message));
    }
    let Some(receiver) = text(RECEIVER_HEADER) else { return Ok(None) };
    let node = connection.conn.node;
    let receiver = receiver.parse().ok().map(ReceiverId);
    match receiver.filter(|receiver| core.members.is_bound(*receiver, node)) {
        Some(receiver) => Ok(Some(Member { receiver, node, peer: connection.conn.peer })),
        None => {
            let message = "no receiver of this number has joined with this node's key: join first";
            Err(ApiError::new(ErrorCode::NotMember, message))
        }
    }
}

/// Reads a JSON body, within the limits of size and time.
async fn body<H, T: DeserializeOwned>(
    core: &Core<H>,
    request: Request<Incoming>,
) -> Result<T, ApiError> {
    let too_large = || {
        let message = format!("a body has at most {BODY_LEN_MAX} bytes");
        ApiError::new(ErrorCode::TooLarge, message)
    };
    let body = request.into_body();
    if body.size_hint().lower() > BODY_LEN_MAX as u64 {
        return Err(too_large());
    }
    let collected = timeout(core.limits.body_time_max, Limited::new(body, BODY_LEN_MAX).collect());
    let bytes = match collected.await {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large()),
        Ok(Err(_)) => return Err(bad_request("the body broke off")),
        Err(_) => return Err(ApiError::new(ErrorCode::Timeout, "the body did not come in time")),
    };
    serde_json::from_slice(&bytes).map_err(|error| bad_request(&error.to_string()))
}

fn bad_request(what: &str) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, format!("not understood: {what}"))
}

fn done() -> Answer {
    let mut answer = Response::new(Outgoing::empty());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer
}
