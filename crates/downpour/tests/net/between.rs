//! Somebody between a receiver and its sender who passes their connections on, and cuts them when told so. What goes by
//! UDP does not pass here.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

#[derive(Default)]
struct State {
    is_cut: bool,
    /// Both ends of each connection.
    connections: Vec<TcpStream>,
}

/// See the module's text. Works until the process ends.
pub(crate) struct Between(Arc<Mutex<State>>);

impl Between {
    /// Listens at `address` for who wants to go to `to`.
    pub(crate) fn new(address: &str, to: &str) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let (state, to) = (Arc::<Mutex<State>>::default(), to.to_owned());
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let mut state = shared.lock().unwrap();
                if state.is_cut {
                    continue;
                }
                let Ok(server) = TcpStream::connect(&to) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    thread::spawn(move || pass(from, to));
                }
                state.connections.extend([client, server]);
            }
        });
        Self(state)
    }

    /// Ends all connections, and every new one at once.
    pub(crate) fn cut(&self) {
        let mut state = self.0.lock().unwrap();
        state.is_cut = true;
        for connection in state.connections.drain(..) {
            // It may have ended already.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn mend(&self) {
        self.0.lock().unwrap().is_cut = false;
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 16 << 10];
    while let Ok(len @ 1..) = from.read(&mut bytes)
        && to.write_all(&bytes[..len]).is_ok()
    {}
    let _ = to.shutdown(Shutdown::Both);
}
