-- ARGV: worker. Returns {task id, run, fencing number}, or false when nothing may start.
-- Which task a bell starts is decided here and nowhere else.
local function choose()
  return redis.call('ZRANGE', QUEUE, 0, 0)[1]
end

local now = now_ms()
local id = choose()
while id and not move(id, 'running', nil, nil, now) do
  redis.call('ZREM', QUEUE, id)  -- removed by hand from under us: it must not stand in the way of the others
  id = choose()
end
if not id then
  return false
end
local task = task_key(id)
redis.call('HSET', task, 'worker', ARGV[1])
local held = redis.call('HMGET', task, 'run', 'fence')
return {id, tonumber(held[1]), tonumber(held[2])}
