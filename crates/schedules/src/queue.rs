//! Parts of requests on the workers of servers: each runs once, and whoever waits for them goes on.

use super::{explore, explored, finds};

macro_rules! stories {
    ($variant:ident) => {
        explored!($variant {
            use shuttle::sync::atomic::{AtomicUsize, Ordering};

            /// Two callers, whose requests have parts on two servers; workers are fewer than parts.
            pub(super) fn callers_share_queues() {
                let queues = Arc::new([Queue::new("one"), Queue::new("two")]);
                let callers = [0, 1].map(|_| {
                    let queues = Arc::clone(&queues);
                    shuttle::thread::spawn(move || {
                        for parts in [4, 2] {
                            let ran: Vec<_> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
                            let all = (0..parts).map(|at| (&queues[at % 2], at)).collect();
                            let results = scatter(all, |at| {
                                ran[at].fetch_add(1, Ordering::SeqCst);
                                Ok(at * 10)
                            });
                            let results: Vec<_> = results.into_iter().map(|it| it.expect("it ran")).collect();
                            assert!(results.into_iter().eq((0..parts).map(|at| at * 10)));
                            assert!(ran.iter().all(|ran| ran.load(Ordering::SeqCst) == 1));
                        }
                    })
                });
                for caller in callers {
                    caller.join().expect("it ends");
                }
                assert!(queues.iter().all(|queue| queue.len() == 0));
            }
        });
    };
}

stories!(queue);
stories!(queue_where_no_worker_is_woken);
stories!(queue_where_the_last_part_tells_nobody);

#[test]
fn each_part_of_a_request_runs_once_and_its_caller_goes_on() {
    explore(queue::callers_share_queues);
}

#[test]
fn broken_queues_are_found() {
    assert!(finds(queue_where_no_worker_is_woken::callers_share_queues));
    assert!(finds(queue_where_the_last_part_tells_nobody::callers_share_queues));
}
