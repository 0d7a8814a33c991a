//! Tells a connection that it must end, or that the process is going.
//!
//! Owns one small task per connection that waits for all of it. The connection itself only reads cells:
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
use crate::metrics::Counter;

/// Why a connection must end at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// Its pod was deleted.
    PodGone,
    /// The node left the mode that brought it here.
    ModeLeft,
}

impl Over {
    /// What is counted.
    pub(crate) fn counter(self) -> Counter {
        match self {
            Over::PodGone => Counter::PodGone,
            Over::ModeLeft => Counter::ModeLeft,
        }
    }

    /// What the audit line of a tunnel says.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Over::PodGone => "the pod is gone",
            Over::ModeLeft => "the node changed the mode of its data path",
        }
    }
}

/// What ends a connection from outside, besides the end of the process.
#[derive(Default)]
pub(crate) struct Ends {
    /// Its pod's end; a connection of nobody known has none.
    pub(crate) pod: Option<CancellationToken>,
    /// The end of the mode that brought it; the node's own connections came without one.
    pub(crate) mode: Option<CancellationToken>,
}

/// What a connection is told, for whoever is deep inside of it.
#[derive(Default)]
pub(crate) struct Told {
    over: Cell<Option<Over>>,
    draining: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Told {
    /// Why the connection must end at once, if it must.
    pub(crate) fn over(&self) -> Option<Over> {
        self.over.get()
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// The one who tells. Dropping it ends the task.
pub(crate) struct Signal {
    told: Rc<Told>,
    task: JoinHandle<()>,
}

impl Signal {
    /// Tells `told` of `ends`, and of the end of the process.
    pub(crate) fn new(worker: &Rc<WorkerCtx>, told: &Rc<Told>, ends: Ends) -> Signal {
        let task = tokio::task::spawn_local(wait(worker.clone(), ends, told.clone()));
        Signal {
            told: told.clone(),
            task,
        }
    }

    /// Whether the process is on its way out.
    pub(crate) fn is_draining(&self) -> bool {
        self.told.draining.get()
    }

    /// Why the connection must end at once, if it must.
    pub(crate) fn over(&self) -> Option<Over> {
        self.told.over()
    }

    /// Runs `connection` until it ends or must; says why it had to.
    ///
    /// One that must is polled once more, so that who relays something can break it off in a way that the pod does not
    /// take for its end, and is dropped then.
    pub(crate) async fn unless_over(&self, connection: impl Future<Output = ()>) -> Option<Over> {
        let mut connection = pin!(connection);
        std::future::poll_fn(|cx| {
            let mut waker = self.told.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
            drop(waker);
            let over = self.told.over();
            match (Pin::new(&mut connection).as_mut().poll(cx), over) {
                (_, Some(over)) => Poll::Ready(Some(over)),
                (Poll::Ready(()), None) => Poll::Ready(None),
                (Poll::Pending, None) => Poll::Pending,
            }
        })
        .await
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn wait(worker: Rc<WorkerCtx>, ends: Ends, told: Rc<Told>) {
    let drain = worker.shared.drain.token();
    let over = async {
        tokio::select! {
            () = cancelled(ends.pod) => Over::PodGone,
            () = cancelled(ends.mode) => Over::ModeLeft,
        }
    };
    let mut over = pin!(over);
    let over = tokio::select! {
        over = &mut over => over,
        () = drain.cancelled() => {
            told.draining.set(true);
            told.wake();
            over.await
        }
    };
    told.over.set(Some(over));
    told.wake();
}

/// Never, without a token.
async fn cancelled(token: Option<CancellationToken>) {
    match token {
        Some(token) => token.cancelled().await,
        None => std::future::pending().await,
    }
}
