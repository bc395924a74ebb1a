//! How the standing multicast session is opened: what of the configuration decides that, and the session itself.

use super::section::MulticastSection;
use super::standing_ticket::{Said, keep_ticket};
use crate::cli::{Controller, Interface};
use crate::session::{OpenSession, Opened, SendProducts, send_products};
use crate::site::{Config, Fault, Site};
use downpour_catalog::ErrorClass;
use downpour_transport::identity::PublicKey;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// How long the session may take to open.
const OPEN_TIME: Duration = Duration::from_secs(30);
/// The ticket's file in the state folder.
const TICKET: &str = "multicast.ticket";

/// What of the configuration decides how the session is opened.
#[derive(Clone, PartialEq)]
pub(super) struct Wanted {
    section: MulticastSection,
    host: Option<String>,
    ports: String,
    pub(super) receivers: BTreeMap<String, PublicKey>,
    controller: Controller,
}

impl Wanted {
    /// `None`: no rule names receivers.
    pub(super) fn of(config: &Config) -> Option<Self> {
        let is_named = |name: &String| config.rule.iter().any(|rule| rule.receivers.contains(name));
        let named = config.receiver.iter().filter(|receiver| is_named(&receiver.name));
        let receivers: BTreeMap<_, _> = named.map(|r| (r.name.clone(), r.key)).collect();
        (!receivers.is_empty()).then(|| Self {
            section: config.multicast.clone(),
            host: config.multicast.host.clone().or_else(|| config.transfer.host.clone()),
            ports: config.transfer.ports.clone(),
            receivers,
            controller: config.controller,
        })
    }

    /// The ticket, in its file.
    fn ticket(&self, site: &Site) -> Result<PathBuf, Fault> {
        let path = site.config().state().join(TICKET);
        let now = u64::try_from(site.clock.now().0 / 1_000_000).unwrap_or(0);
        let said = Said {
            host: self.host.as_deref(),
            port: self.section.port,
            key: site.identity.public_key(),
            allow: self.receivers.values().copied().collect(),
        };
        keep_ticket(&path, said, now)?;
        Ok(path)
    }

    /// Opens it.
    pub(super) async fn open(&self, site: &Site) -> Result<(OpenSession, Opened), Fault> {
        let section = &self.section;
        let interface = section.interface.as_deref().map(Interface::find).transpose();
        let interface = interface.map_err(|f| Fault::new(ErrorClass::Internal, f.what))?;
        let mut session = send_products(SendProducts {
            identity: site.identity.clone(),
            ticket: self.ticket(site)?,
            interface,
            group: section.group,
            rate: section.rate.map(|rate| *rate),
            controller: self.controller,
            keep_bytes: section.keep.0,
            ports: self.ports.parse().unwrap_or(crate::ports::PortRange::DEFAULT),
        });
        match tokio::time::timeout(OPEN_TIME, &mut session.opened).await {
            Ok(Ok(opened)) => Ok((session, opened)),
            _ => {
                session.running.stop();
                let what = session.running.done().await.err().map(|fault| fault.what);
                let what = what.unwrap_or_else(|| "the session did not open".to_owned());
                Err(Fault::new(ErrorClass::OutOfResources, what))
            }
        }
    }
}
