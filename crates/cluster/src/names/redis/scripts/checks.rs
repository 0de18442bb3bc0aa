//! What checks ask: of a shard, and of the marker of a partition's epoch.

/// Returns what a check needs: the kind of the shard, the intents of its locks, and those that it committed.
pub(super) const INSPECT: &str = r"
local all, room = {'inspected', kind}, 16777216
local function add(what, value)
  local intent = bounded(value)
  room = room - #intent
  if room < 0 then error(redis.error_reply('UNSOUND intents are too long')) end
  all[#all + 1] = what
  all[#all + 1] = intent
end
if redis.call('HLEN', locks) + redis.call('HLEN', committed) + redis.call('HLEN', finished) > 100000 then
  error(redis.error_reply('UNSOUND too many intents'))
end
for _, lock in ipairs(redis.call('HVALS', locks)) do
  add('l', cmsgpack.unpack(lock)[2])
end
for _, key in ipairs({committed, finished}) do
  local intents = redis.call('HGETALL', key)
  for at = 1, #intents, 2 do
    if intents[at] ~= 'buckets' then add('c', intents[at + 1]) end
  end
end
return all
";

/// Removes the shard, which may have many entries: the server frees them in the background.
pub(super) const REMOVE: &str = r"
redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7])
return {'done'}
";

/// Removes the marker.
pub(super) const ERASE: &str = r"
redis.call('DEL', KEYS[1])
return {'done'}
";

/// `KEYS[1]` is the marker. Returns the epoch in which the partition is confirmed, or nothing; whether there is a
/// marker; and whether a check holds the names.
pub(super) const PROBE: &str = r"
local marker = redis.call('HMGET', KEYS[1], 'id', 'epoch', 'held')
if not marker[1] then return {'', '0', '0'} end
return {marker[1] == id and marker[2] or '', '1', marker[3] or '0'}
";

/// `KEYS[1]` is the marker; the arguments are the number of the new epoch, and whether others are kept out of it. A
/// server that forgot which numbers it gave continues from its clock, with one number for each microsecond: no two
/// epochs begin at the same number, and no epoch gives numbers faster than time passes.
pub(super) const BEGIN: &str = r"
local numbers = tonumber(redis.call('HGET', KEYS[1], 'numbers') or '0') or 0
local clock = redis.call('TIME')
numbers = math.max(numbers, tonumber(clock[1]) * 1048576 + tonumber(clock[2]))
redis.call('HSET', KEYS[1], 'id', id, 'epoch', ARGV[1], 'held', ARGV[2], 'numbers', string.format('%.0f', numbers))
return {'done'}
";
