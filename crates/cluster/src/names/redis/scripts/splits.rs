//! What the split of a directory asks, and a change of names in a bucket of its directory.

/// Arguments: three for each entry: its place, its name, and what that leads to. For a bucket to which nothing leads.
pub(super) const FILL: &str = r"
if kind ~= 'b' or locked > 0 then return {'differs'} end
for at = 2, #ARGV, 3 do
  redis.call('ZADD', order, ARGV[at], ARGV[at + 1])
  redis.call('HSET', names, ARGV[at + 1], ARGV[at + 2])
  if tonumber(ARGV[at]) >= tonumber(next_place) then
    next_place = string.format('%.0f', tonumber(ARGV[at]) + 1)
  end
end
save()
return {'done'}
";

/// Argument: the directory for which the bucket was made.
pub(super) const DISCARD: &str = r"
if kind ~= 'b' or locked > 0 or redis.call('HGET', shard, 'parent') ~= ARGV[2] then return {'differs'} end
redis.call('UNLINK', shard, names, order, locks, committed, finished)
return {'done'}
";

/// Argument: for how many microseconds the directory's time moves on by itself. Whoever sets that time meanwhile waits for
/// other nodes' touches to be over, since these rely on it.
pub(super) const TOUCH: &str = r"
if kind ~= 'D' then return {'differs'} end
local refused = leased()
if refused then return refused end
local now, whose = now_us(), lessee
if touched > now and head[13] ~= lessee then whose = 'several' end
touched = math.max(touched, now + tonumber(ARGV[2]))
redis.call('HSET', shard, 'touched', string.format('%.0f', touched), 'toucher', whose)
if now > tonumber(changed) then changed = string.format('%.0f', now) end
save()
return {'done'}
";
