//! Tells a connection that its pod is gone or that the process is going.
//!
//! Owns one small task per connection that waits for both. The connection itself only reads cells:
//! polling the tokens each time it is woken would take their locks, and those are shared between
//! workers.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Poll, Waker};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::context::WorkerCtx;

/// What a connection is told. Dropping it ends the task.
pub(crate) struct Signal {
    told: Rc<Told>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Told {
    gone: Cell<bool>,
    draining: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Told {
    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

impl Signal {
    /// Waits for the end of the pod (`gone`) and of the process.
    pub(crate) fn new(worker: &Rc<WorkerCtx>, gone: Option<CancellationToken>) -> Signal {
        let told = Rc::new(Told::default());
        let task = tokio::task::spawn_local(wait(worker.clone(), gone, told.clone()));
        Signal { told, task }
    }

    /// Whether the process is on its way out.
    pub(crate) fn is_draining(&self) -> bool {
        self.told.draining.get()
    }

    /// Runs `connection` until it ends or its pod is gone; says whether it ended by itself.
    pub(crate) async fn unless_gone(&self, connection: impl Future<Output = ()>) -> bool {
        let mut connection = pin!(connection);
        std::future::poll_fn(|cx| {
            if self.told.gone.get() {
                return Poll::Ready(false);
            }
            let mut waker = self.told.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
            drop(waker);
            Pin::new(&mut connection).as_mut().poll(cx).map(|()| true)
        })
        .await
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn wait(worker: Rc<WorkerCtx>, gone: Option<CancellationToken>, told: Rc<Told>) {
    let drain = worker.shared.drain.token();
    let Some(gone) = gone else {
        drain.cancelled().await;
        told.draining.set(true);
        told.wake();
        return;
    };
    tokio::select! {
        () = gone.cancelled() => {}
        () = drain.cancelled() => {
            told.draining.set(true);
            told.wake();
            gone.cancelled().await;
        }
    }
    told.gone.set(true);
    told.wake();
}
