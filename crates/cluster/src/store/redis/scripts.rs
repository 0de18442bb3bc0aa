//! The scripts that the server runs, one for each request, so that each is atomic and takes one round trip.
//!
//! Each script first checks whether the server is the one that wrote the marker of the epoch: the server's `run_id`
//! changes with each start, its `master_replid` with each promotion, and the marker itself is lost with the data. If
//! not, the server may have forgotten something, and a new epoch begins with the number that the caller supplied.
//!
//! On a cluster, the members and each partition have a marker; the members' one also lists the partitions' epochs.

use redis::Script;

use super::server_identity::SERVER_IDENTITY;
use super::when_full::EvenIfFull;

/// `KEYS[1]` is the marker, `ARGV[1]` the number of the epoch that would begin now.
const EPOCH: &str = r"
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local marker = redis.pcall('HMGET', KEYS[1], 'id', 'epoch', 'since')
if marker.err then
  redis.call('PEXPIRE', KEYS[1], -1)
  marker = {}
end
local epoch, since = marker[2], marker[3]
local function is_number(text) return text and string.find(text, '^%d+$') end
if marker[1] ~= id or not is_number(epoch) or (since and not is_number(since)) then
  epoch, since = ARGV[1], string.format('%.0f', now)
  redis.call('HSET', KEYS[1], 'id', id, 'epoch', epoch, 'since', since)
end
local limit = 16777216
";

/// The view of this master itself: its configuration epoch, and whether a majority of the masters heard from it within
/// the given milliseconds. If so, they had not promoted another in its place before that time.
const HEARD: &str = r"
local function heard(within)
  local masters, fresh, config = 0, 0, '0'
  for line in string.gmatch(redis.call('CLUSTER', 'NODES'), '[^\n]+') do
    local flags, pong, of, slots = string.match(line, '^%S+ %S+ (%S+) %S+ %d+ (%d+) (%d+) %S+(.*)')
    if flags and string.find(flags, 'master') and string.find(slots, '%d') then
      masters = masters + 1
      local is_self = string.find(flags, 'myself')
      if is_self then config = of end
      if is_self or tonumber(pong) >= now - within then fresh = fresh + 1 end
    end
  end
  return config, fresh * 2 > masters
end
local cut_off = 'CUTOFF a majority of the masters was not heard by this one for ' ..
  'some seconds: it is cut off, or cluster-node-timeout is longer than 15 s'
";

/// The value of a hash's field, or an empty one; refuses a value that is too large. Likewise for tables with too many
/// fields.
const BOUNDED: &str = r"
local function field(key, name)
  if redis.call('HSTRLEN', key, name) > limit then return redis.error_reply('UNSOUND too large') end
  return redis.call('HGET', key, name) or ''
end
";

/// Comes before [`SWAP`] where the server's memory is used up: what is stored must not get larger.
const NO_LARGER: &str = r"
if #ARGV[5] > redis.call('HSTRLEN', KEYS[2], 't') then
  return redis.error_reply('OOM command not allowed when used memory > \'maxmemory\'')
end
";

/// `KEYS[2]` is the members, `KEYS[3]` the leases. The marker notes the state of both after their last change: if one
/// of them is missing, older or of another kind, for example because somebody changed it by hand, the server has
/// forgotten it without a restart. A marker without that note is of an earlier version, or of a store without members.
const WHOLE: &str = r"
local function looks_of_members()
  local version = redis.pcall('HGET', KEYS[2], 'v')
  local count = redis.pcall('HLEN', KEYS[3])
  if type(version) ~= 'string' or type(count) ~= 'number' then return '' end
  return string.format('%s %.0f %.0f', version, redis.call('HSTRLEN', KEYS[2], 'm'), count)
end
local noted = redis.call('HGET', KEYS[1], 'members')
if noted and noted ~= looks_of_members() then
  epoch, since = ARGV[1], string.format('%.0f', now)
  redis.call('HSET', KEYS[1], 'epoch', epoch, 'since', since)
  redis.call('HDEL', KEYS[1], 'members')
  redis.call('PEXPIRE', KEYS[2], -1)
  redis.call('PEXPIRE', KEYS[3], -1)
end
";

/// `KEYS[2]` is the file. Returns epoch, version and tokens.
const READ: &str = r"
return {epoch, field(KEYS[2], 'v'), field(KEYS[2], 't')}
";

/// `KEYS[2]` is the file; the arguments are the expected version, the epoch, the new version and tokens, and after how
/// many milliseconds these expire, or 0 for never. Returns `1`, or what is stored.
const SWAP: &str = r"
local version = redis.call('HGET', KEYS[2], 'v') or '0'
if epoch ~= ARGV[3] or version ~= ARGV[2] then
  return {0, epoch, field(KEYS[2], 'v'), field(KEYS[2], 't')}
end
redis.call('HSET', KEYS[2], 'v', ARGV[4], 't', ARGV[5])
if ARGV[6] == '0' then redis.call('PERSIST', KEYS[2]) else redis.call('PEXPIRE', KEYS[2], ARGV[6]) end
return {1, '', '', ''}
";

/// `KEYS[2]` is the members, `KEYS[3]` the leases. Returns epoch, version, members, the clock, leases, when the epoch
/// began, and the partitions of a cluster.
const ROLL: &str = r"
if redis.call('HLEN', KEYS[3]) > 100000 then return redis.error_reply('UNSOUND too many leases') end
return {epoch, field(KEYS[2], 'v'), field(KEYS[2], 'm'), now, redis.call('HGETALL', KEYS[3]), since or '0',
  field(KEYS[1], 'parts')}
";

/// Arguments: expected version, epoch, new version, members; the change of a lease, its session and its duration; how
/// long leases of an earlier epoch may still run.
const SWAP_MEMBERS: &str = r"
local version = redis.call('HGET', KEYS[2], 'v') or '0'
if epoch ~= ARGV[3] or version ~= ARGV[2] then return 0 end
if ARGV[6] == 'runs' then
  redis.call('HSET', KEYS[3], ARGV[7], string.format('%.0f', now + tonumber(ARGV[8])))
elseif ARGV[6] == 'over' then
  local till = tonumber(redis.call('HGET', KEYS[3], ARGV[7]) or '0') or 0
  if till > now or (tonumber(since or '0') or 0) + tonumber(ARGV[9]) > now then return 0 end
  redis.call('HDEL', KEYS[3], ARGV[7])
elseif ARGV[6] == 'ends' then
  redis.call('HDEL', KEYS[3], ARGV[7])
end
redis.call('HSET', KEYS[2], 'v', ARGV[4], 'm', ARGV[5])
redis.call('HSET', KEYS[1], 'members', looks_of_members())
return 1
";

/// `KEYS[2]` is the members, `KEYS[3]` the leases. Arguments: epoch, session, duration.
const RENEW: &str = r"
local till = tonumber(redis.call('HGET', KEYS[3], ARGV[3]) or '0') or 0
if epoch ~= ARGV[2] or till <= now then return 0 end
redis.call('HSET', KEYS[3], ARGV[3], string.format('%.0f', now + tonumber(ARGV[4])))
return 1
";

/// A master of a cluster that may have been replaced neither grants nor takes leases. The last argument says how
/// recently it must have heard from a majority of the masters.
const NOT_CUT_OFF: &str = r"
local _, is_fresh = heard(tonumber(ARGV[#ARGV]))
if not is_fresh then return redis.error_reply(cut_off) end
";

/// The argument is a time as for [`NOT_CUT_OFF`]. Returns the epoch of the partition and its master's configuration
/// epoch.
const PROBE: &str = r"
local config, is_fresh = heard(tonumber(ARGV[2]))
if not is_fresh then return redis.error_reply(cut_off) end
return {epoch, config}
";

/// Arguments: the partitions as they were and as they are now; the number of the epoch that begins with them. Returns
/// `1`, or `0` if others were faster.
const NOTE: &str = r"
if (redis.call('HGET', KEYS[1], 'parts') or '') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'parts', ARGV[3], 'epoch', ARGV[4])
return 1
";

/// `KEYS[1]` is a session's list; the argument is a file. Messages that no session reads expire; a key that is no list
/// is removed.
const TELL: &str = r"
if type(redis.pcall('LREM', KEYS[1], 0, ARGV[1])) == 'table' then redis.call('PEXPIRE', KEYS[1], -1) end
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('LTRIM', KEYS[1], -1024, -1)
redis.call('PEXPIRE', KEYS[1], 60000)
return 1
";

/// `KEYS[1]` is a session's list of peer messages; the argument is one message. Unread messages expire soon.
const SEND: &str = r"
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('LTRIM', KEYS[1], -256, -1)
redis.call('PEXPIRE', KEYS[1], 10000)
return 1
";

/// `KEYS[1]` and `KEYS[2]` are the sessions with low-priority work, and those whose programs use the origin, with the
/// times until which that holds; `KEYS[3]` is the leases. Arguments: a session, or nothing to note nothing; whether it
/// belongs to either; for how many milliseconds. Returns their numbers, and that of the leases. Nothing depends on what
/// is forgotten here, so no epoch is compared.
const USERS: &str = r"
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local counts = {}
for at = 1, 2 do
  if ARGV[1] ~= '' then
    redis.call('ZREMRANGEBYSCORE', KEYS[at], '-inf', string.format('%.0f', now))
    if ARGV[at + 1] == '1' then
      redis.call('ZADD', KEYS[at], string.format('%.0f', now + tonumber(ARGV[4])), ARGV[1])
      redis.call('PEXPIRE', KEYS[at], ARGV[4])
    else
      redis.call('ZREM', KEYS[at], ARGV[1])
    end
  end
  counts[at] = redis.call('ZCOUNT', KEYS[at], string.format('(%.0f', now), '+inf')
end
counts[3] = redis.call('HLEN', KEYS[3])
return counts
";

/// The scripts that concern a file, and those that send messages to a session.
pub(super) struct FileScripts {
    pub(super) read: Script,
    pub(super) swap: EvenIfFull,
    pub(super) tell: EvenIfFull,
    pub(super) send: EvenIfFull,
}

/// The scripts that concern the members.
pub(super) struct MemberScripts {
    pub(super) roll: Script,
    pub(super) swap_members: EvenIfFull,
    pub(super) renew: EvenIfFull,
    pub(super) users: Script,
}

/// The scripts that concern the partitions of a cluster.
pub(super) struct PartitionScripts {
    pub(super) probe: Script,
    pub(super) note: EvenIfFull,
}

fn text(bodies: &[&str]) -> String {
    let all: Vec<_> = [SERVER_IDENTITY, EPOCH, BOUNDED].iter().chain(bodies).copied().collect();
    all.concat()
}

fn script(bodies: &[&str]) -> Script {
    Script::new(&text(bodies))
}

fn even_if_full(bodies: &[&str]) -> EvenIfFull {
    EvenIfFull::new(&text(bodies))
}

impl FileScripts {
    pub(super) fn new() -> Self {
        let (tell, send) = (EvenIfFull::new(TELL), EvenIfFull::new(SEND));
        let swap = EvenIfFull::with(&text(&[SWAP]), &text(&[NO_LARGER, SWAP]));
        Self { read: script(&[READ]), swap, tell, send }
    }
}

impl MemberScripts {
    /// The scripts for one server.
    pub(super) fn new() -> Self {
        Self::with(&[])
    }

    /// The scripts for a cluster.
    pub(super) fn of_cluster() -> Self {
        Self::with(&[HEARD, NOT_CUT_OFF])
    }

    fn with(first: &[&str]) -> Self {
        let even_if_full = |body: &str| even_if_full(&[first, &[WHOLE, body]].concat());
        Self {
            roll: script(&[WHOLE, ROLL]),
            swap_members: even_if_full(SWAP_MEMBERS),
            renew: even_if_full(RENEW),
            users: Script::new(USERS),
        }
    }
}

impl PartitionScripts {
    pub(super) fn new() -> Self {
        Self { probe: script(&[HEARD, PROBE]), note: even_if_full(&[HEARD, NOT_CUT_OFF, NOTE]) }
    }
}
