-- ARGV: id, fence, then field/value pairs. A changed phase is told. Returns 0, or -1 when the lease is lost.
local id = ARGV[1]
if not holds(id, ARGV[2]) then
  return -1
end
local task = task_key(id)
for at = 3, #ARGV, 2 do
  local field, value = ARGV[at], ARGV[at + 1]
  local before = redis.call('HGET', task, field)
  redis.call('HSET', task, field, value)
  if field == 'phase' and before ~= value then
    offer(id, 'phase', '{"phase":"' .. value .. '"}', now_ms())
  end
end
return 0
