-- Ends at most 100 leases that ran out; returns id, new state, id, new state, …
local now = now_ms()
local done = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', LEASES, '-inf', whole(now), 'LIMIT', 0, 100)) do
  done[#done + 1] = id
  done[#done + 1] = start_over(id, now)
end
return done
