//! The emulator of one network, as a process.

use super::Link;
use crate::emulator::{Account, Order, TAP_QUEUE, Wire};
use crate::footprint::Footprint;
use crate::network::machine::in_group;
use crate::shell::{feed, prioritised};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// Above all programs under test, below the kernel's own threads.
const PRIORITY: &str = "50";

/// It runs until this is dropped.
#[derive(Debug)]
pub(crate) struct Emulated {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    wires: Vec<Wire>,
}

impl Emulated {
    /// Starts it in the bridge's namespace; all devices are there when this returns.
    pub(super) fn start(
        footprint: &Footprint,
        switch: &str,
        wires: Vec<Wire>,
        seed: u64,
    ) -> io::Result<Self> {
        let this = std::env::current_exe()?;
        let mut command = in_group(footprint.group("network").as_deref(), "ip");
        let this = this.to_string_lossy();
        command.args(["netns", "exec", switch]).args(prioritised(PRIORITY, &this));
        command.args(["emulator", "serve"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let mut emulated = Self { child, orders, answers, wires };
        emulated.order(&Order::Build { wires: emulated.wires.clone(), seed })?;
        if emulated.answer()? != "ready" {
            return Err(io::Error::other("the emulator did not start"));
        }
        let mut batch = String::new();
        for name in emulated.wires.iter().flat_map(|wire| [&wire.near, &wire.far]) {
            batch += &format!("link set {name} txqueuelen {TAP_QUEUE}\n");
        }
        feed("ip", &["-n", switch, "-batch", "-"], &batch)?;
        Ok(emulated)
    }

    /// Changes the link at this port of the bridge.
    pub(super) fn reshape(&self, port: &str, link: &Link) -> io::Result<()> {
        let wire = self.wire(port);
        let wire = wire.ok_or_else(|| io::Error::other(format!("{port} is not emulated")))?;
        self.order(&Order::Reshape { wire, up: link.up.clone(), down: link.down.clone() })
    }

    /// The number of the link at this port of the bridge.
    pub(super) fn wire(&self, port: &str) -> Option<usize> {
        self.wires.iter().position(|wire| wire.far == port)
    }

    /// Whether it has ended by itself, and its devices with it.
    pub(super) fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Ends it; gives what it did.
    pub(super) fn stop(mut self) -> io::Result<Account> {
        self.orders = None;
        Ok(serde_json::from_str(&self.answer()?)?)
    }

    fn order(&self, order: &Order) -> io::Result<()> {
        let mut orders = self.orders.as_ref().expect("it has not been stopped");
        writeln!(orders, "{}", serde_json::to_string(order)?)?;
        orders.flush()
    }

    fn answer(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        self.orders = None;
        // Fails only when it has ended already.
        let _ = self.child.wait();
    }
}
