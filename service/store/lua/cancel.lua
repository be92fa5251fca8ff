-- ARGV: id. Returns {whether anything was done, the state it is in then}; false for an unknown task.
local id = ARGV[1]
local task = task_key(id)
local state = redis.call('HGET', task, 'state')
if not state then
  return false
end
if TERMINAL[state] then
  return {0, state}
end
if state == 'running' then
  redis.call('HSET', task, 'cancel', 1)
  return {1, state}
end
move(id, 'cancelled', 'cancelled', nil, now_ms())
return {1, 'cancelled'}
