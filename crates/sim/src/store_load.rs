//! Clients that ask the masters of a shared store, one request at a time each: how many requests a second that makes.
//!
//! A request takes a client's processor for a while, travels, takes its master's processor, and travels back; then the
//! client begins the next one. A thread that was asleep takes a while to wake up, which nobody's processor is busy with: a
//! master that is never idle never pays it. Either all share the processors of one machine, or the clients share some, or
//! everybody has one.
//!
//! A master works like Redis's event loop: the requests that it finds waiting are a batch, executed in the order of their
//! arrival; then it writes their answers, one after another. So clients that met at a master come back to it at nearly the
//! same time, and it is idle until they do.
//!
//! Requests are not all alike: each takes all its times as often as a factor says, drawn from those that were measured.
//! With equal times, a few clients fall into a rhythm in which they never meet at the master, which no real ones keep.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Parts of a store: each belongs to one master.
pub const PARTS: u32 = 64;

/// The share of a master's time for a request in which it writes the answer.
const ANSWERING: f64 = 0.15;

/// How long a request takes where nobody is in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceTimes {
    /// Of the client's processor.
    pub client_ns: u64,
    /// Of the master's processor.
    pub master_ns: u64,
    /// Until a thread runs that was asleep.
    pub wake_ns: u64,
    /// Over the network, one way.
    pub network_ns: u64,
}

/// Whose processors there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Processors {
    /// So many, for clients and masters together.
    Shared(u32),
    /// So many for the clients together, and one for each master.
    Apart(u32),
    /// One for each client, and one for each master.
    Own,
}

/// Where the requests of a client go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Each client has a part of its own, at random: its directory, or its file.
    OwnParts,
    /// All ask one part: one directory, or one file.
    OnePart,
    /// Each request goes to any part: one directory in buckets.
    EachRequest,
}

/// What is simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLoad {
    /// Clients.
    pub clients: u32,
    /// Masters, from 1 to [`PARTS`].
    pub masters: u32,
    /// Whose processors there are.
    pub processors: Processors,
    /// Where requests go.
    pub spread: Spread,
    /// How long they take.
    pub times: ServiceTimes,
    /// Requests of each client.
    pub requests: u32,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StoreOutcome {
    /// Requests a second of all clients together, while all of them are asking.
    pub per_second: f64,
    /// The mean time of a request.
    pub mean_ns: f64,
    /// The share of time in which the busiest master works.
    pub busiest: f64,
}

/// Who works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Worker {
    Client(u32),
    Master(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A client's request is at its master.
    Arrives { client: u32, master: u32 },
    /// The answer is at the client.
    Answered(u32),
    /// A worker is awake, and done with its work, which it had a processor for.
    Done(Worker),
}

struct Client {
    begun_ns: u64,
    left: u32,
    part: u32,
    /// How many times as long as the mean one its present request takes.
    factor: f64,
}

#[derive(Default)]
struct Master {
    /// Whose requests wait until the batch is done.
    queue: Vec<u32>,
    is_working: bool,
    busy_ns: u64,
}

struct Simulation<'a> {
    load: StoreLoad,
    factors: &'a [f64],
    now_ns: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    numbered: u64,
    clients: Vec<Client>,
    masters: Vec<Master>,
    /// Free processors, if all share them, and who waits for one.
    free: u32,
    waiting: VecDeque<Worker>,
    random: u64,
    done: u64,
    sum_ns: u64,
    /// Requests that were done, and when, once the first client had done a third of its own: rates are counted from there.
    /// A master answers in batches, so only whole rounds of a client say how long one takes.
    first: Option<(u64, u64)>,
}

/// Simulates it with requests that are all alike. The same load and seed give the same outcome.
///
/// # Panics
/// If there are no clients, requests, masters or processors, or more than [`PARTS`] masters.
#[must_use]
pub fn store_load(load: StoreLoad, seed: u64) -> StoreOutcome {
    varied_store_load(load, &[1.0], seed)
}

/// Simulates it with requests that take the times as often as one of `factors` each, drawn at random.
///
/// # Panics
/// As [`store_load`], and if there are no factors.
#[must_use]
pub fn varied_store_load(load: StoreLoad, factors: &[f64], seed: u64) -> StoreOutcome {
    assert!(!factors.is_empty(), "a request takes some time");
    assert!(load.clients > 0 && load.requests > 0 && (1..=PARTS).contains(&load.masters));
    let free = match load.processors {
        Processors::Shared(count) | Processors::Apart(count) => count,
        Processors::Own => u32::MAX,
    };
    assert!(free > 0, "somebody must work");
    let mut simulation = Simulation {
        load,
        factors,
        now_ns: 0,
        events: BinaryHeap::new(),
        numbered: 0,
        clients: Vec::new(),
        masters: (0..load.masters).map(|_| Master::default()).collect(),
        free,
        waiting: VecDeque::new(),
        random: seed,
        done: 0,
        sum_ns: 0,
        first: None,
    };
    simulation.run()
}

impl Simulation<'_> {
    fn run(&mut self) -> StoreOutcome {
        for _ in 0..self.load.clients {
            let (part, factor) = (self.part(), self.factor());
            self.clients.push(Client { begun_ns: 0, left: self.load.requests, part, factor });
        }
        for client in 0..self.load.clients {
            self.ready(Worker::Client(client));
        }
        // Until the first client has no more to ask: then fewer than all are asking.
        let mut is_over = false;
        while let (false, Some(Reverse((at_ns, _, event)))) = (is_over, self.events.pop()) {
            self.now_ns = at_ns;
            is_over = self.happens(event);
        }
        let (first_done, first_ns) = self.first.unwrap_or_default();
        let seconds = as_number((self.now_ns - first_ns).max(1)) / 1e9;
        let busy_ns = self.masters.iter().map(|master| master.busy_ns).max().unwrap_or(0);
        StoreOutcome {
            per_second: as_number(self.done - first_done) / seconds,
            mean_ns: as_number(self.sum_ns) / as_number(self.done.max(1)),
            busiest: as_number(busy_ns.min(self.now_ns)) / as_number(self.now_ns.max(1)),
        }
    }

    /// Whether that was the end.
    fn happens(&mut self, event: Event) -> bool {
        let ServiceTimes { network_ns, .. } = self.load.times;
        match event {
            Event::Arrives { client, master } => {
                let at = &mut self.masters[master as usize];
                at.queue.push(client);
                if !at.is_working {
                    at.is_working = true;
                    self.ready(Worker::Master(master));
                }
            }
            Event::Done(Worker::Client(client)) => {
                self.release(Worker::Client(client));
                let master = self.master(client);
                self.after(network_ns, Event::Arrives { client, master });
            }
            Event::Done(Worker::Master(master)) => {
                let at = &mut self.masters[master as usize];
                at.is_working = !at.queue.is_empty();
                let goes_on = at.is_working;
                // It keeps its processor while there is more to do.
                if goes_on {
                    self.works(Worker::Master(master), 0);
                } else {
                    self.release(Worker::Master(master));
                }
            }
            Event::Answered(client) => {
                let at = &mut self.clients[client as usize];
                self.done += 1;
                self.sum_ns += self.now_ns - at.begun_ns;
                at.begun_ns = self.now_ns;
                at.left -= 1;
                if at.left == 0 {
                    return true;
                }
                if self.load.requests - at.left >= (self.load.requests / 3).max(1) {
                    self.first.get_or_insert((self.done, self.now_ns));
                }
                self.clients[client as usize].factor = self.factor();
                self.ready(Worker::Client(client));
            }
        }
        false
    }

    /// A worker has something to do, and was asleep.
    fn ready(&mut self, worker: Worker) {
        if self.shares(worker) {
            if self.free == 0 {
                self.waiting.push_back(worker);
                return;
            }
            self.free -= 1;
        }
        self.works(worker, self.load.times.wake_ns);
    }

    /// Whether others may work where this one does.
    fn shares(&self, worker: Worker) -> bool {
        match self.load.processors {
            Processors::Shared(_) => true,
            Processors::Apart(_) => matches!(worker, Worker::Client(_)),
            Processors::Own => false,
        }
    }

    /// A worker sleeps. Who waited for its processor goes on there at once.
    fn release(&mut self, worker: Worker) {
        if !self.shares(worker) {
            return;
        }
        match self.waiting.pop_front() {
            Some(next) => self.works(next, 0),
            None => self.free += 1,
        }
    }

    /// A worker has a processor, on which it wakes up before it works.
    fn works(&mut self, worker: Worker, wake_ns: u64) {
        match worker {
            Worker::Client(client) => {
                let factor = self.clients[client as usize].factor;
                let work_ns = scaled(self.load.times.client_ns, factor);
                self.after(scaled(wake_ns, factor) + work_ns, Event::Done(worker));
            }
            Worker::Master(master) => self.works_on_batch(master, wake_ns),
        }
    }

    /// A master executes all that waits for it, and then answers.
    fn works_on_batch(&mut self, master: u32, wake_ns: u64) {
        let ServiceTimes { master_ns, network_ns, .. } = self.load.times;
        let batch = std::mem::take(&mut self.masters[master as usize].queue);
        let factor = |client: &u32| self.clients[*client as usize].factor;
        let wake_ns = scaled(wake_ns, factor(batch.first().expect("it has work")));
        let work_ns: Vec<u64> =
            batch.iter().map(|client| scaled(master_ns, factor(client))).collect();
        let answering = |work_ns: u64| scaled(work_ns, ANSWERING);
        let mut done_ns = wake_ns + work_ns.iter().map(|ns| ns - answering(*ns)).sum::<u64>();
        for (client, work_ns) in batch.into_iter().zip(&work_ns) {
            done_ns += answering(*work_ns);
            self.after(done_ns + network_ns, Event::Answered(client));
        }
        self.masters[master as usize].busy_ns += done_ns - wake_ns;
        self.after(done_ns, Event::Done(Worker::Master(master)));
    }

    fn after(&mut self, ns: u64, event: Event) {
        self.numbered += 1;
        self.events.push(Reverse((self.now_ns + ns, self.numbered, event)));
    }

    fn random(&mut self, below: u64) -> u64 {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }

    fn part(&mut self) -> u32 {
        u32::try_from(self.random(u64::from(PARTS))).unwrap_or(0)
    }

    fn factor(&mut self) -> f64 {
        match self.factors {
            [only] => *only,
            factors => {
                let at = self.random(factors.len() as u64);
                factors[usize::try_from(at).unwrap_or(0)]
            }
        }
    }

    /// Which master the next request of a client goes to.
    fn master(&mut self, client: u32) -> u32 {
        let part = match self.load.spread {
            Spread::OwnParts => self.clients[client as usize].part,
            Spread::OnePart => 0,
            Spread::EachRequest => self.part(),
        };
        part % self.load.masters
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "times, above 0")]
fn scaled(ns: u64, factor: f64) -> u64 {
    (as_number(ns) * factor).round() as u64
}

#[expect(clippy::cast_precision_loss, reason = "times of a simulation are far below 2^52 ns")]
const fn as_number(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: ServiceTimes =
        ServiceTimes { client_ns: 40_000, master_ns: 30_000, wake_ns: 10_000, network_ns: 5_000 };

    fn load(clients: u32, masters: u32) -> StoreLoad {
        StoreLoad {
            clients,
            masters,
            processors: Processors::Own,
            spread: Spread::OwnParts,
            times: TIMES,
            requests: 500,
        }
    }

    fn about(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 0.02, "{found} beside {expected}");
    }

    /// What queueing theory says of the ends.
    #[test]
    fn one_client_takes_the_sum_of_times_and_many_are_as_fast_as_the_master() {
        let one = store_load(load(1, 1), 1);
        about(one.per_second, 1e9 / f64::from(40_000 + 30_000 + 2 * 10_000 + 2 * 5_000));
        about(one.mean_ns, 100_000.0);
        let many = store_load(load(64, 1), 1);
        about(many.per_second, 1e9 / 30_000.0);
        assert!(many.busiest > 0.99);
        // Little's law: each has one request under way.
        about(many.mean_ns, 64.0 * 30_000.0);
    }

    #[test]
    fn shared_processors_bound_clients_and_master_together() {
        let shared = |clients, count| {
            let processors = Processors::Shared(count);
            store_load(StoreLoad { processors, ..load(clients, 1) }, 1).per_second
        };
        about(shared(8, 1), 1e9 / 70_000.0);
        // While a batch is executed all of its clients wait: two processors are not always busy.
        let two = shared(8, 2) / (2e9 / 70_000.0);
        assert!((0.8..1.0).contains(&two), "{two}");
        about(shared(64, 8), 1e9 / 30_000.0);
        let apart = |clients, count| {
            let processors = Processors::Apart(count);
            store_load(StoreLoad { processors, ..load(clients, 1) }, 1).per_second
        };
        about(apart(1, 1), 1e9 / 100_000.0);
        about(apart(64, 1), 1e9 / 40_000.0);
        about(apart(64, 2), 1e9 / 30_000.0);
    }

    #[test]
    fn masters_share_parts_and_one_part_is_on_one_master() {
        let one = store_load(load(1000, 1), 1).per_second;
        let spread = |spread, masters| {
            store_load(StoreLoad { spread, ..load(1000, masters) }, 1).per_second / one
        };
        about(spread(Spread::OnePart, 64), 1.0);
        // Batches that are cut off at the ends make 1 %.
        let own = spread(Spread::OwnParts, 64);
        assert!((40.0..64.7).contains(&own), "parts have unequally many directories: {own}");
        let each = spread(Spread::EachRequest, 64);
        assert!((40.0..64.7).contains(&each), "{each}");
        assert!(spread(Spread::OwnParts, 8) < 8.1);
    }

    /// Two clients with equal times never meet at the master; with exponential ones they do, as mean value analysis says
    /// of a closed network of two with a delay and one queue.
    #[test]
    fn two_clients_whose_requests_vary_meet_at_the_master() {
        let times =
            ServiceTimes { client_ns: 60_000, master_ns: 30_000, wake_ns: 0, network_ns: 0 };
        let two = StoreLoad { times, requests: 100_000, ..load(2, 1) };
        about(store_load(two, 1).per_second, 2e9 / 90_000.0);
        // Quantiles of the exponential distribution, whose mean is 1.
        let quantile = |at: u32| -(1.0 - (f64::from(at) + 0.5) / 1000.0).ln();
        let factors: Vec<f64> = (0..1000).map(quantile).collect();
        // A request's times vary together here, so they meet less than independent ones, for which 1 - 1/9 is the bound.
        let varied = varied_store_load(two, &factors, 1).per_second * 90_000.0 / 2e9;
        assert!((0.80..0.97).contains(&varied), "{varied}");
        let one = StoreLoad { clients: 1, ..two };
        about(varied_store_load(one, &factors, 1).per_second, 1e9 / 90_000.0);
    }

    #[test]
    fn the_same_seed_gives_the_same_outcome() {
        assert_eq!(store_load(load(100, 16), 7), store_load(load(100, 16), 7));
        assert_ne!(store_load(load(100, 16), 7), store_load(load(100, 16), 8));
    }
}
