//! The door of the site, as a service: a TLS listener and the routes behind it. It is opened anew when its section of the
//! configuration changes; at another address before the change counts, so that a wrong one shuts nobody out.

use super::Site;
use super::config::Config;
use super::service::{Fault, Running, Service, Status, Stop, Wish};
use crate::api::Routes;
use axum::Router;
use axum::body::Body;
use downpour_catalog::ErrorClass;
use downpour_transport::control::{BindError, Connections, Endpoint};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tower::ServiceExt as _;

/// How long answers under way may take when the door closes.
const GRACE: Duration = Duration::from_secs(5);
/// How often, and after which pause, a port is tried that was ours a moment ago.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// The door.
pub(super) struct Door {
    router: Router,
    /// Opened before it is needed, so that a port that is taken ends the start, and refuses a reload.
    ahead: Mutex<Option<Endpoint>>,
    open: Mutex<Option<(SocketAddr, Connections)>>,
}

impl Door {
    /// Listens.
    pub(super) async fn open(site: &Arc<Site>, routes: Routes) -> Result<Self, BindError> {
        let endpoint = bind(site, &site.config()).await?;
        let open = (endpoint.local_addr(), endpoint.connections());
        let router = routes.into_router(site.clone());
        let (ahead, open) = (Mutex::new(Some(endpoint)), Mutex::new(Some(open)));
        Ok(Self { router, ahead, open })
    }

    /// Where it listens, or did last.
    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(addr, _)| *addr)
    }

    /// Listens where a configuration to come says, beside where it listens now.
    pub(super) async fn prepare(&self, site: &Site, new: &Config) -> Result<(), BindError> {
        if new.api.listen != site.config().api.listen {
            let endpoint = bind(site, new).await?;
            *self.ahead.lock().unwrap_or_else(PoisonError::into_inner) = Some(endpoint);
        }
        Ok(())
    }

    async fn run(self: Arc<Self>, site: Arc<Site>, stop: Stop) -> Result<(), Fault> {
        let mut doors = JoinSet::new();
        while stop.wish() == Wish::Run {
            let config = site.config();
            let ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner).take();
            let endpoint = match ahead {
                Some(endpoint) => endpoint,
                None => rebind(&site, &config).await?,
            };
            let open = (endpoint.local_addr(), endpoint.connections());
            tracing::info!(address = %open.0, "listening");
            *self.open.lock().unwrap_or_else(PoisonError::into_inner) = Some(open);
            let router = self.router.clone();
            let answer = move |request: axum::http::Request<_>| {
                let router = router.clone();
                async move {
                    let answer = router.oneshot(request.map(Body::new)).await;
                    answer.unwrap_or_else(|never| match never {})
                }
            };
            // What was asked before a change is answered beside what is asked after it.
            let (close, closed) = oneshot::channel::<()>();
            let closed = async { drop(closed.await) };
            doors.spawn(endpoint.serve(answer, closed, GRACE));
            tokio::select! {
                () = stop.asked() => {}
                () = changed(&site, &config) => {}
            }
            drop(close);
        }
        while doors.join_next().await.is_some() {}
        Ok(())
    }
}

/// Listens again, as soon as the door before has let go of the port.
async fn rebind(site: &Site, config: &Config) -> Result<Endpoint, Fault> {
    let mut tries = 0;
    loop {
        match bind(site, config).await {
            Ok(endpoint) => return Ok(endpoint),
            Err(_) if tries < TRIES => tries += 1,
            Err(error) => return Err(Fault::new(ErrorClass::OutOfResources, error.to_string())),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn bind(site: &Site, config: &Config) -> Result<Endpoint, BindError> {
    Endpoint::bind(config.api.listen, &site.identity, config.server_limits()).await
}

/// Ready when the configuration of the door is another.
async fn changed(site: &Site, now: &Config) {
    let mut changes = site.config_changes();
    let differs = |new: &Arc<Config>| new.api != now.api || new.limits != now.limits;
    // Without a site there is nothing to wait for.
    let _ = changes.wait_for(differs).await;
}

impl Service for Door {
    fn name(&self) -> &'static str {
        "endpoint"
    }

    fn run(self: Arc<Self>, site: Arc<Site>, stop: Stop) -> Running {
        Box::pin(Door::run(self, site, stop))
    }

    fn status(&self) -> Status {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((addr, connections)) = open.as_ref() else { return Status::default() };
        Status::line(format!("{addr}, {} connections", connections.now()))
            .with("connections", connections.now() as f64)
            .with("strangers_total", connections.strangers() as f64)
    }

    fn can_stop(&self) -> bool {
        false
    }
}
