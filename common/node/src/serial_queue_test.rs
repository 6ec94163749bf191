//! The queue's promises, one by one. All run on a runtime of one thread, so a job that blocked it would hang the test.

use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::{mpsc as channel, oneshot};

use super::*;

/// A queue that reports every batch, and a gate that holds each batch until it is let through.
fn gated(
    capacity: usize,
    batch_max: usize,
) -> (SerialQueue<u32>, mpsc::Sender<()>, channel::UnboundedReceiver<Vec<u32>>) {
    let (open, gate) = mpsc::channel::<()>();
    let (report, batches) = channel::unbounded_channel();
    let queue = SerialQueue::new("test", capacity, batch_max, move |batch| {
        report.send(batch).unwrap();
        gate.recv().unwrap();
    });
    (queue, open, batches)
}

#[tokio::test]
async fn jobs_run_in_order_and_what_gathered_meanwhile_is_one_batch() {
    let (queue, open, mut batches) = gated(100, 100);
    queue.push(0).await.unwrap();
    assert_eq!(batches.recv().await, Some(vec![0]));
    for job in 1..=10 {
        queue.push(job).await.unwrap();
    }
    open.send(()).unwrap();
    assert_eq!(batches.recv().await, Some((1..=10).collect()));
    open.send(()).unwrap();
    queue.close().await;
}

#[tokio::test]
async fn a_batch_holds_at_most_batch_max_jobs() {
    let (queue, open, mut batches) = gated(100, 3);
    queue.push(0).await.unwrap();
    assert_eq!(batches.recv().await, Some(vec![0]));
    for job in 1..=5 {
        queue.push(job).await.unwrap();
    }
    for _ in 0..3 {
        open.send(()).unwrap();
    }
    assert_eq!(batches.recv().await, Some(vec![1, 2, 3]));
    assert_eq!(batches.recv().await, Some(vec![4, 5]));
    queue.close().await;
}

#[tokio::test]
async fn jobs_of_many_tasks_all_run_once_and_each_tasks_in_its_order() {
    let (report, mut seen) = channel::unbounded_channel();
    let queue = Arc::new(SerialQueue::new("test", 7, 5, move |batch: Vec<(u32, u32)>| {
        for job in batch {
            report.send(job).unwrap();
        }
    }));
    let writers = (0..20).map(|writer| {
        let queue = Arc::clone(&queue);
        tokio::spawn(async move {
            for job in 0..100 {
                queue.push((writer, job)).await.unwrap();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    queue.close().await;
    let mut next = [0; 20];
    while let Ok((writer, job)) = seen.try_recv() {
        let expected = &mut next[usize::try_from(writer).unwrap()];
        assert_eq!(job, *expected);
        *expected += 1;
    }
    assert_eq!(next, [100; 20]);
}

#[tokio::test]
async fn who_brings_more_than_there_is_room_for_waits() {
    let (queue, open, mut batches) = gated(2, 1);
    queue.push(0).await.unwrap();
    assert_eq!(batches.recv().await, Some(vec![0]), "it runs, and still takes room");
    queue.push(1).await.unwrap();
    assert_eq!(queue.try_push(2), Err(PushError::Full(2)));
    let waiting = queue.push(2);
    tokio::pin!(waiting);
    let polled =
        std::future::poll_fn(|context| std::task::Poll::Ready(waiting.as_mut().poll(context).is_pending()));
    assert!(polled.await, "there is no room");
    open.send(()).unwrap();
    waiting.await.unwrap();
    open.send(()).unwrap();
    open.send(()).unwrap();
    queue.close().await;
    assert_eq!(batches.recv().await, Some(vec![1]));
    assert_eq!(batches.recv().await, Some(vec![2]));
}

#[tokio::test]
async fn a_push_that_was_given_up_adds_nothing() {
    let (queue, open, mut batches) = gated(1, 1);
    queue.push(0).await.unwrap();
    let given_up = tokio::time::timeout(Duration::ZERO, queue.push(1)).await;
    assert!(given_up.is_err());
    open.send(()).unwrap();
    queue.push(2).await.unwrap();
    open.send(()).unwrap();
    queue.close().await;
    assert_eq!(batches.recv().await, Some(vec![0]));
    assert_eq!(batches.recv().await, Some(vec![2]));
}

#[tokio::test]
async fn a_job_that_blocks_leaves_the_runtime_free() {
    let (queue, open, mut batches) = gated(10, 10);
    queue.push(0).await.unwrap();
    batches.recv().await.unwrap();
    // The only thread of this runtime runs other tasks and timers while the job stands at the gate.
    let other = tokio::spawn(async { 7 });
    assert_eq!(other.await.unwrap(), 7);
    tokio::time::sleep(Duration::from_millis(1)).await;
    open.send(()).unwrap();
    queue.close().await;
}

#[tokio::test]
async fn closing_runs_what_was_accepted_and_refuses_the_rest() {
    let (queue, open, mut batches) = gated(10, 1);
    for job in 0..3 {
        queue.push(job).await.unwrap();
    }
    assert!(tokio::time::timeout(Duration::from_millis(1), queue.close()).await.is_err(), "jobs wait");
    assert_eq!(queue.push(9).await, Err(PushError::Closed(9)));
    assert_eq!(queue.try_push(9), Err(PushError::Closed(9)));
    for _ in 0..3 {
        open.send(()).unwrap();
    }
    queue.close().await;
    for job in 0..3 {
        assert_eq!(batches.recv().await, Some(vec![job]));
    }
    queue.close().await;
}

#[tokio::test]
async fn dropping_the_queue_lets_accepted_jobs_run() {
    let (queue, open, mut batches) = gated(10, 1);
    queue.push(0).await.unwrap();
    queue.push(1).await.unwrap();
    drop(queue);
    open.send(()).unwrap();
    open.send(()).unwrap();
    assert_eq!(batches.recv().await, Some(vec![0]));
    assert_eq!(batches.recv().await, Some(vec![1]));
    assert_eq!(batches.recv().await, None, "the runner is gone");
}

#[tokio::test]
async fn a_panic_ends_its_queue_only_and_nobody_waits_for_ever() {
    type Job = (bool, oneshot::Sender<()>);
    let run = |batch: Vec<Job>| {
        for (panics, reply) in batch {
            assert!(!panics, "planned");
            let _ = reply.send(());
        }
    };
    let (broken, healthy) = (SerialQueue::new("broken", 10, 1, run), SerialQueue::new("healthy", 10, 1, run));
    let ask = async |queue: &SerialQueue<Job>, panics| {
        let (reply, answer) = oneshot::channel();
        queue.push((panics, reply)).await.map_err(|_| "refused")?;
        answer.await.map_err(|_| "dropped")
    };
    assert_eq!(ask(&broken, false).await, Ok(()));
    assert_eq!(ask(&broken, true).await, Err("dropped"));
    broken.close().await;
    assert!(broken.has_panicked());
    assert_eq!(ask(&broken, false).await, Err("refused"));
    assert_eq!(ask(&healthy, false).await, Ok(()));
    assert!(!healthy.has_panicked());
}

#[tokio::test]
async fn a_long_line_of_batches_takes_several_turns_and_still_ends() {
    let (report, mut seen) = channel::unbounded_channel();
    let queue = SerialQueue::new("test", 1_000, 1, move |batch: Vec<usize>| report.send(batch).unwrap());
    for job in 0..10 * BATCHES_PER_TURN {
        queue.push(job).await.unwrap();
    }
    queue.close().await;
    for job in 0..10 * BATCHES_PER_TURN {
        assert_eq!(seen.recv().await, Some(vec![job]));
    }
}
