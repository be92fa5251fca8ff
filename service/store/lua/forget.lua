-- Removes at most 20 ended tasks whose time has come; returns the segment records (JSON) they had.
local segments = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', RETENTION, '-inf', whole(now_ms()), 'LIMIT', 0, 20)) do
  local task = task_key(id)
  for _, segment in ipairs(redis.call('ZRANGE', task .. ':segments', 0, -1)) do
    segments[#segments + 1] = segment
  end
  redis.call('ZREM', P .. 'tasks:' .. redis.call('HGET', task, 'team'), id)
  redis.call('DEL', task, task .. ':events', task .. ':segments', task .. ':artifacts')
  redis.call('ZREM', RETENTION, id)
end
return segments
