//! Random calls on three mounts of one origin whose options differ, held against a model in memory: what one node
//! acknowledged every other one shows at once, however it is looked at (I11), nodes that are killed with dirty bytes
//! lose none (I4), and the origin alone has everything in the end (I7).
//!
//! Each node's cache is used while that is tried: what was admitted, dirty, handed over and evicted is asserted.
//! `HALOCLINE_CLUSTER_SEED` and `HALOCLINE_CLUSTER_SEEDS` choose other seeds, `HALOCLINE_CLUSTER_STEPS` longer runs.

mod bursts;
mod calls;
mod model;
mod world;

use halocline_testkit::hostile::Random;
use world::World;

const STEPS: u64 = 700;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn run(seed: u64) {
    let mut random = Random(seed);
    let Some(mut world) = World::new(seed, &mut random) else { return };
    for step in 0..number("HALOCLINE_CLUSTER_STEPS").unwrap_or(STEPS) {
        world.step = step;
        match random.below(250) {
            0..2 => world.kill_and_mount(&mut random),
            2..5 => bursts::contend(&mut world, &mut random),
            5..7 => bursts::append_at_once(&mut world, &mut random),
            7..9 => bursts::write_between_each_other(&mut world, &mut random),
            9..11 => bursts::change_at_once(&mut world, &mut random),
            11..13 => bursts::fill_up(&mut world, &mut random),
            13..15 => world.look_at_status(),
            15..20 => world.command(&mut random),
            _ => calls::make(&mut world, &mut random),
        }
        world.compare_sizes(&mut random);
    }
    world.end();
}

#[test]
fn i11_calls_on_nodes_of_all_kinds_answer_as_in_memory() {
    let first = number("HALOCLINE_CLUSTER_SEED").unwrap_or(900);
    for seed in first..first + number("HALOCLINE_CLUSTER_SEEDS").unwrap_or(3) {
        println!("seed {seed}");
        run(seed);
    }
}
