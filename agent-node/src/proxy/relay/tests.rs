use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let (b, _) = listener.accept().await.unwrap();
    (a, b)
}

/// A relay with both outer ends: what the pod and the upstream hold.
async fn run(
    idle: Duration,
    must_end: impl FnMut() -> bool + Unpin + 'static,
) -> (
    TcpStream,
    TcpStream,
    tokio::task::JoinHandle<(End, u64, u64)>,
) {
    let (pod, inner_pod) = pair().await;
    let (upstream, inner_upstream) = pair().await;
    let task = tokio::task::spawn_local(async move {
        let passed = Passed::default();
        let told = Told::default();
        let cut = Cut {
            told: &told,
            every: Duration::from_millis(20),
            must_end,
        };
        let end = relay(
            inner_pod,
            inner_upstream,
            Bytes::from_static(b"<"),
            Bytes::from_static(b">"),
            idle,
            cut,
            &passed,
        )
        .await;
        (end, passed.to_upstream.get(), passed.to_pod.get())
    });
    (pod, upstream, task)
}

async fn local(test: impl Future<Output = ()>) {
    tokio::task::LocalSet::new().run_until(test).await;
}

const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_half_close_is_passed_on_and_the_other_direction_goes_on() {
    local(async {
        let (mut pod, mut upstream, task) = run(LONG, || false).await;
        pod.write_all(b"question").await.unwrap();
        pod.shutdown().await.unwrap();
        let mut got = Vec::new();
        upstream.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"<question");
        upstream.write_all(b"answer").await.unwrap();
        drop(upstream);
        got.clear();
        pod.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b">answer");
        assert_eq!(task.await.unwrap(), (End::Closed, 9, 7));
    })
    .await;
}

#[tokio::test]
async fn a_reset_is_passed_on_as_a_reset() {
    local(async {
        let (mut pod, upstream, task) = run(LONG, || false).await;
        let mut one = [0; 1];
        pod.read_exact(&mut one).await.unwrap();
        reset_on_close(&upstream);
        drop(upstream);
        let error = pod.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(task.await.unwrap().0, End::Reset);
    })
    .await;
}

#[tokio::test]
async fn much_goes_both_ways_through_slow_readers() {
    local(async {
        const SIZE: usize = 8 << 20;
        let (pod, upstream, task) = run(LONG, || false).await;
        let (mut pod_r, mut pod_w) = pod.into_split();
        let (mut up_r, mut up_w) = upstream.into_split();
        let sent: Vec<u8> = (0..SIZE).map(|i| (i % 251) as u8).collect();
        let (to_up, to_pod) = (sent.clone(), sent.clone());
        let a = tokio::spawn(async move { pod_w.write_all(&to_up).await.unwrap() });
        let b = tokio::spawn(async move { up_w.write_all(&to_pod).await.unwrap() });
        let read = |mut r: tokio::net::tcp::OwnedReadHalf| async move {
            let (mut all, mut piece) = (Vec::new(), vec![0; 3000]);
            loop {
                let n = r.read(&mut piece).await.unwrap();
                if n == 0 {
                    return all;
                }
                all.extend_from_slice(&piece[..n]);
                if all.len() % 64 == 0 {
                    tokio::task::yield_now().await;
                }
            }
        };
        let up = tokio::spawn(async move {
            let mut first = [0; 1];
            up_r.read_exact(&mut first).await.unwrap();
            read(up_r).await
        });
        let mut first = [0; 1];
        pod_r.read_exact(&mut first).await.unwrap();
        let got = read(pod_r).await;
        a.await.unwrap();
        b.await.unwrap();
        assert!(got == sent && up.await.unwrap() == sent);
        let n = SIZE as u64 + 1;
        assert_eq!(task.await.unwrap(), (End::Closed, n, n));
    })
    .await;
}

#[tokio::test]
async fn silence_ends_a_relay_and_bytes_keep_it() {
    local(async {
        let (mut pod, _upstream, task) = run(Duration::from_millis(120), || false).await;
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(60)).await;
            pod.write_all(b"x").await.unwrap();
        }
        assert!(!task.is_finished());
        assert_eq!(task.await.unwrap().0, End::Idle);
    })
    .await;
}

#[tokio::test]
async fn a_relay_that_may_not_go_on_is_cut() {
    local(async {
        let allowed = std::rc::Rc::new(Cell::new(true));
        let ask = allowed.clone();
        let (_pod, _upstream, task) = run(LONG, move || !ask.get()).await;
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert!(!task.is_finished());
        allowed.set(false);
        assert_eq!(task.await.unwrap().0, End::Cut);
    })
    .await;
}
