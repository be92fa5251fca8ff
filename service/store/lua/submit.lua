-- ARGV: id, team, sealed ("" = none), workspace id ("" = none), then field/value pairs of the record.
-- Returns the queue position from 0, or -1 when the id is taken.
local id, team, sealed, workspace = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local task = task_key(id)
if redis.call('EXISTS', task) == 1 then
  return -1
end
local rank = redis.call('INCR', P .. 'arrivals')
redis.call('HSET', task, 'state', 'queued', 'run', 0, 'seq', 0, 'fence', 0, 'rank', rank)
for at = 5, #ARGV, 2 do
  redis.call('HSET', task, ARGV[at], ARGV[at + 1])
end
if sealed ~= '' then
  redis.call('SET', task .. ':sealed', sealed)
end
if workspace ~= '' then
  local key = P .. 'ws:' .. team .. ':' .. workspace
  local record = redis.call('GET', key)
  if record then
    redis.call('PEXPIRE', key, RETENTION_MS)
    redis.call('PEXPIRE', P .. 'uploads:' .. team .. ':' .. cjson.decode(record).sha256, RETENTION_MS)
  end
end
redis.call('ZADD', P .. 'tasks:' .. team, 0, id)
redis.call('ZADD', QUEUE, rank, id)
state_event(id, 'queued', 0, nil, nil, now_ms())
return redis.call('ZRANK', QUEUE, id)
