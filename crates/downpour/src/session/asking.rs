//! What an attempt asks of its sender, and what it means to it when it is refused.

use super::ended::Over;
use super::host::Host;
use crate::cli::Fault;
use crate::object::printable;
use downpour_catalog::ErrorClass;
use downpour_transport::control::{
    ClockOffset, ControlClient, Event, EventStream, Joined, ReadyRequest, Receipt, RequestError,
};
use downpour_transport::identity::Identity;
use std::time::Duration;

/// How often a receipt is tried, a second apart: the sender may be busy.
const RECEIPT_TRIES: u32 = 5;

/// Before the sender's events are listened for again.
const LISTEN_PAUSE: Duration = Duration::from_secs(1);

/// Subscribes to the sender's events; says that we are ready meanwhile, if that is known.
pub(super) async fn listen(
    client: &ControlClient,
    ready: Option<ReadyRequest>,
) -> Result<EventStream, RequestError> {
    let tell = async {
        match ready {
            Some(ready) => client.ready(ready).await,
            None => Ok(()),
        }
    };
    tokio::try_join!(client.events(), tell).map(|(events, ())| events)
}

pub(super) async fn next_event(events: &mut EventStream) -> Result<Event, String> {
    events.next().await.map_err(|end| end.to_string())
}

/// Until the session is over, or this side's user ends that.
pub(super) async fn outlast(
    over: &mut Over,
    (client, events): (&ControlClient, &mut EventStream),
    host: &mut Host,
) {
    if let Some((_, why)) = &over.failure {
        let why = printable(why.as_bytes());
        host.say(&format!("this receiver failed ({why}); waiting for the end of the session"));
    }
    over.interrupted = listen_on(client, events, host).await;
    over.goes_on = over.interrupted;
}

/// The same; whether this side's user ended that. A connection that breaks is no end of the session: the sender is asked
/// until it says so, or knows this receiver no more.
async fn listen_on(client: &ControlClient, events: &mut EventStream, host: &mut Host) -> bool {
    let mut is_told = false;
    loop {
        tokio::select! {
            is_over = shutdown(events) => if is_over { return false },
            () = host.stopped() => return true,
        }
        if !is_told {
            host.say(
                "the connection to the sender broke: listening again, for the session may go on",
            );
            is_told = true;
        }
        tokio::select! {
            again = listen_again(client) => match again {
                Some(again) => *events = again,
                None => return false,
            },
            () = host.stopped() => return true,
        }
    }
}

/// Whether the sender says that the session is over, before the connection breaks.
async fn shutdown(events: &mut EventStream) -> bool {
    loop {
        match events.next().await {
            Ok(Event::Shutdown { .. }) => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}

async fn listen_again(client: &ControlClient) -> Option<EventStream> {
    loop {
        tokio::time::sleep(LISTEN_PAUSE).await;
        match client.events().await {
            Err(error) if error.is_passing() => {}
            answer => return answer.ok(),
        }
    }
}

/// The sender's clock, in a session of products: their log needs it.
pub(super) async fn clock(
    client: &ControlClient,
    joined: &Joined,
) -> Result<Option<ClockOffset>, RequestError> {
    match joined.reply.products_from {
        Some(_) => client.clock().await.map(Some),
        None => Ok(None),
    }
}

/// Why the sender is lost; or what cannot be helped by joining it anew. A sender that knows this receiver no more has given
/// it up while it was away, and takes it in again (`docs/protocol.md#CTL-3`).
pub(super) fn lost(error: RequestError) -> Result<String, Fault> {
    if error.is_passing() || error == RequestError::Rejoin {
        return Ok(error.to_string());
    }
    let todo = "ask the sender for a new ticket and try again";
    Err(Fault::incomplete(error.to_string(), todo).of(ErrorClass::SourceRefused))
}

pub(super) async fn send_receipt(
    client: &ControlClient,
    receipt: Receipt,
    identity: &Identity,
) -> Result<(), RequestError> {
    let signed = receipt.sign(identity);
    let mut tries = 1;
    loop {
        match client.receipt(&signed).await {
            Err(error) if error.is_passing() && tries < RECEIPT_TRIES => {
                tries += 1;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::lost;
    use downpour_transport::control::{ApiError, ErrorCode, RequestError};

    #[test]
    fn who_is_told_to_join_again_has_lost_its_sender_and_does_not_give_up() {
        let refused = |code| RequestError::Refused(ApiError::new(code, "no"));
        assert!(lost(RequestError::Rejoin).is_ok());
        assert!(lost(RequestError::Lost("reset".to_owned())).is_ok());
        assert!(lost(refused(ErrorCode::Busy)).is_ok());
        assert!(lost(refused(ErrorCode::NotAllowed)).is_err());
    }
}
