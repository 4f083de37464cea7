//! ahead
use super::Union;
use super::node::NodeId;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
pub(crate) struct Ahead {
    todo: Mutex<Vec<NodeId>>,
    wake: Condvar,
    events: AtomicU64,
}

impl Ahead {
    pub fn events(&self) -> u64 { self.events.load(Ordering::Acquire) }
    pub fn event(&self) { self.events.fetch_add(1, Ordering::AcqRel); }
    pub fn still(&self, events: &u64) -> bool { self.events() == *events }
    pub fn offer(&self, ids: Vec<NodeId>) {
        let mut todo = self.todo.lock();
        if todo.len() > 200 { let n = todo.len() - 100; todo.drain(..n); }
        todo.extend(ids.into_iter().rev());
        self.wake.notify_one();
    }
}

pub(crate) fn start(union: &Arc<Union>) {
    let weak = Arc::downgrade(union);
    std::thread::Builder::new().name("ahead".into()).spawn(move || loop {
        let Some(union) = weak.upgrade() else { return };
        let id = {
            let mut todo = union.ahead.todo.lock();
            if todo.is_empty() {
                union.ahead.wake.wait_for(&mut todo, std::time::Duration::from_millis(500));
            }
            todo.pop()
        };
        if let Some(id) = id && let Err(e) = union.prepare(id) { tracing::debug!("ahead {e}"); }
    }).unwrap();
}
